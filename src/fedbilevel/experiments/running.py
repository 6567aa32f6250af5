"""An experiment carried out: rounds run, measured, written down and kept."""

import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.checkpoints import Checkpoints
from fedbilevel.engines.participation import Everyone, UniformSample
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.round import Round
from fedbilevel.engines.rounds import resume
from fedbilevel.engines.sharded import Sharded
from fedbilevel.experiments.building import task_of
from fedbilevel.experiments.choices import AllShards, Experiment
from fedbilevel.experiments.folders import CHECKPOINTS, has_checkpoints
from fedbilevel.experiments.learnt import Learnt, write_learnt
from fedbilevel.experiments.measuring import measurements
from fedbilevel.experiments.trackers import trackers_of
from fedbilevel.experiments.writing import settings_of
from fedbilevel.tracking.driving import tracked
from fedbilevel.tracking.records import Journal, Record


class Step(NamedTuple):
    """A finished round of an experiment.

    Attributes:
        done: the round.
        record: what was measured of it; none in between.

    Example:
        >>> Step._fields
        ('done', 'record')
    """

    done: Round
    record: Record | None


def carry_out(experiment: Experiment, folder: Path) -> Generator[Step]:
    """Run an experiment, from the newest checkpoint in its folder if there is one.

    Trackers are told of each record, and of how the run ends: whoever stops iterating
    early closes the generator, and has left the run.

    Args:
        experiment: what is asked for.
        folder: of the run.

    Example:
        >>> carry_out.__name__
        'carry_out'
    """
    # The number of cores is settled before JAX does anything.
    engine = _engine(experiment)
    task = task_of(experiment)
    measure = measurements(task, experiment.evaluation.stationarity)
    going_on = has_checkpoints(folder)
    settings: dict[str, Any] = {
        "seed": experiment.seed,
        "participation": Everyone()
        if experiment.participants is None
        else UniformSample(experiment.participants),
        "norm_limit": experiment.norm_limit,
        "engine": engine,
    }
    keeping = experiment.checkpoints
    checkpoints = Checkpoints(folder / CHECKPOINTS, keeping.every, keeping.keep)
    rounds = resume(
        task.problem,
        experiment.algorithm,
        task.devices,
        task.x,
        task.y,
        rounds=experiment.rounds,
        checkpoints=checkpoints,
        **settings,
    )
    if going_on and not has_checkpoints(folder):
        raise ValueError(
            f"no checkpoint in {folder} can be used: they are damaged, and now called "
            "so; give the run another --folder to begin anew."
        )
    tracking = tracked(
        trackers_of(experiment.tracking, folder),
        folder.absolute().name,
        settings_of(experiment),
        goes_on=going_on,
    )
    began, journal, done = time.monotonic(), None, None
    with tracking as tell_trackers, ExitStack() as closing:
        try:
            for done in rounds:
                if journal is None:
                    journal = closing.enter_context(Journal(folder, done.number))
                    if not done.number:
                        paused = time.monotonic()
                        start = Record(0, 0.0, Costs(), measure(task.x, task.y))
                        journal.write(start)
                        tell_trackers(start)
                        began += time.monotonic() - paused
                record, finished = None, done.number + 1
                due = finished % experiment.evaluation.every == 0
                if due or finished == experiment.rounds:
                    jax.block_until_ready(done.state)
                    paused = time.monotonic()
                    seconds = journal.seconds + paused - began
                    figures = measure(done.x, done.y)
                    record = Record(finished, seconds, done.costs, figures)
                    journal.write(record)
                    tell_trackers(record)
                    # A run's time is that of its rounds, however often it is measured.
                    began += time.monotonic() - paused
                yield Step(done, record)
        finally:
            if done is not None:
                write_learnt(folder, Learnt(done.x, done.y))


def _engine(experiment: Experiment) -> Engine:
    engine = experiment.engine
    if not isinstance(engine, AllShards):
        return engine
    if engine.cores is not None:
        jax.config.update("jax_num_cpu_devices", engine.cores)
    return Sharded(chunk_size=engine.chunk_size)
