"""An experiment carried out: rounds run, measured, written down and kept."""

import time
from collections.abc import Generator
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
    began, journal, done = time.monotonic(), None, None
    try:
        for done in rounds:
            if journal is None:
                journal = Journal(folder, done.number)
                if not done.number:
                    start = measure(task.x, task.y)
                    journal.write(Record(-1, 0.0, Costs(), start))
            due = (done.number + 1) % experiment.evaluation.every == 0
            record = None
            if due or done.number + 1 == experiment.rounds:
                seconds = journal.seconds + time.monotonic() - began
                record = Record(
                    done.number, seconds, done.costs, measure(done.x, done.y)
                )
                journal.write(record)
            yield Step(done, record)
    finally:
        if journal is not None and done is not None:
            journal.__exit__()
            write_learnt(folder, Learnt(done.x, done.y))


def _engine(experiment: Experiment) -> Engine:
    engine = experiment.engine
    if not isinstance(engine, AllShards):
        return engine
    if engine.cores is not None:
        jax.config.update("jax_num_cpu_devices", engine.cores)
    return Sharded(chunk_size=engine.chunk_size)
