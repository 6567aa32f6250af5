"""An experiment carried out: rounds run, measured, written down and kept."""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import chain
from math import inf
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.data.devices import Devices
from fedbilevel.engines.checkpoints.options import Checkpoints
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.participation import FullParticipation, UniformSample
from fedbilevel.engines.preparation import RunSpec
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.round import Round
from fedbilevel.engines.run import remaining_rounds_of
from fedbilevel.engines.screening import NoUploadsError
from fedbilevel.engines.sharded import engine as sharded
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.causes import Best, better, cause_of
from fedbilevel.experiments.files.write import settings_of
from fedbilevel.experiments.measure import measured_start, measurements
from fedbilevel.experiments.outcome import outcome_of, write_cause
from fedbilevel.experiments.run_directory.failures import failure_recorded
from fedbilevel.experiments.run_directory.layout import (
    CHECKPOINTS,
    EXPERIMENT,
    has_checkpoints,
)
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.run_directory.recorder import Recorder
from fedbilevel.experiments.run_directory.runs import asked_of, finished, keep
from fedbilevel.experiments.run_directory.solution import Solution, write_solution
from fedbilevel.experiments.schema import Experiment, Sharded, Tracking
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.tracking import MLflow, TensorBoard, Tracker, WeightsAndBiases
from fedbilevel.tracking.delivery import track
from fedbilevel.tracking.records import Journal, MovedError, Record, read_records

logger = logging.getLogger("fedbilevel")


class Step(NamedTuple):
    """A finished round of an experiment.

    Attributes:
        done: the round; not each is seen where a measurement is due every n-th only.
        record: what was measured of it; none in between.

    Example:
        >>> Step._fields
        ('done', 'record')
    """

    done: Round
    record: Record | None


class Work(NamedTuple):
    """What an experiment comes to: all that `run` takes, and how it is measured.

    Attributes:
        problem: the two losses.
        devices: the data, or who has them.
        x: where the upper variable starts.
        y: where the lower variable starts.
        weights: of devices.
        engine: where devices' work is done.
        measure: what is measured at a point.

    Example:
        >>> Work._fields[0]
        'problem'
    """

    problem: BilevelProblem
    devices: Devices
    x: Upper
    y: Lower
    weights: Int[np.ndarray, "devices"] | None
    engine: Engine
    measure: Callable[[Upper, Lower], dict[str, float]]


def prepare_run(experiment: Experiment) -> Work:
    """Return what an experiment comes to where all its data are here.

    Example:
        >>> from fedbilevel import FedBiO
        >>> prepare_run(Experiment(FedBiO(0.1))).devices.device_count
        8
    """
    # The number of cores is settled before JAX does anything.
    engine = _engine(experiment)
    task = build_task(experiment)
    weights = weights_of(experiment, task.devices)
    measure = measurements(task, weights, experiment.evaluation.stationarity)
    return Work(task.problem, task.devices, task.x, task.y, weights, engine, measure)


def run_experiment(
    experiment: Experiment,
    directory: Path,
    resume: bool,
    prepare: Callable[[Experiment], Work] = prepare_run,
) -> Generator[Step]:
    """Run an experiment in a directory that no other process is running in.

    Trackers are told of each record, and of how the run ends: whoever stops iterating
    early closes the generator, and has left the run. It is then measured once more.
    A run whose numbers end it leaves the reason in its directory (`failures`).

    Args:
        experiment: what is asked for.
        directory: of the run.
        resume: whether to go on from the newest checkpoint in it, if there is one.
        prepare: returns what the experiment comes to.

    If the run ends badly, which step was too large is written down in the directory.

    Raises:
        ValueError: if there is a checkpoint and the run is not to go on from it, or
            none of those that there are can be used, or a loss is not finite at the
            start.
        NoUploadsError: if all devices were excluded; it says which step was too large.

    Example:
        >>> run_experiment.__name__
        'run_experiment'
    """
    work = prepare(experiment)
    with run_lock(directory):
        begun = has_checkpoints(directory)
        if begun and not resume:
            raise ValueError(_occupied(directory))
        rounds = _rounds(experiment, work, directory)
        if begun and not has_checkpoints(directory):
            raise ValueError(
                f"no checkpoint in {directory} can be used: they are damaged, and now "
                "called so; give the run another --directory to begin anew."
            )
        if begun and finished(experiment, directory):
            for done in rounds:
                if done.number + 1 == experiment.rounds:
                    # A run that was killed after its last record has not come to it.
                    write_solution(directory, Solution(done.x, done.y))
                yield Step(done, None)
            return
        # Between two checkpoints, a run that was killed has done no more than this.
        most = 2 * experiment.checkpoints.every
        lost = (one.rounds >= most for one in read_records(directory))
        if resume and not begun and any(lost):
            raise ValueError(
                f"{directory} has records of a run, but its checkpoints are gone, so that "
                "it would begin anew and replace them; put its directory "
                f"{CHECKPOINTS!r} back, or run the experiment in another --directory."
            )
        if begun and not any(read_records(directory)):
            logger.warning(
                "%s has checkpoints but no records: what was measured before is lost, "
                "and the run goes on without.",
                directory,
            )
        start = None if begun else measured_start(work.measure, work.x, work.y)
        keep(experiment, directory)
        tracking = track(
            trackers_of(experiment.tracking, directory),
            directory.absolute().name,
            settings_of(experiment),
            resume=begun,
        )
        with failure_recorded(directory), tracking as tell_trackers, closing(rounds):
            yield from _recorded(
                experiment, work, start, rounds, directory, tell_trackers
            )


def _occupied(directory: Path) -> str:
    command = f"fedbilevel resume {quote(str(directory))}"
    if (directory / EXPERIMENT).is_file() and finished(
        former := asked_of(directory), directory
    ):
        return (
            f"{directory} has a finished run of {former.rounds} rounds already; continue "
            f"it with more rounds by: {command} --rounds {2 * former.rounds}, or give "
            "this one another --directory."
        )
    return (
        f"{directory} has a run already; go on with it by: {command}, or give this one "
        "another --directory."
    )


def _recorded(
    experiment: Experiment,
    work: Work,
    start: Mapping[str, float] | None,
    rounds: Iterator[Round],
    directory: Path,
    tell_trackers: Callable[[Record], None],
) -> Generator[Step]:
    began, record, count = time.monotonic(), None, 0
    best = Best(inf, 0, 0, work.x, work.y)
    with _explained(experiment, work, directory, lambda: (best, count - best.rounds)):
        first = next(rounds)
        with Journal(directory, first.number) as journal:
            recorder = Recorder(journal, tell_trackers, work.measure, began)
            if not first.number:
                point = work.x, work.y
                record = recorder.record(0, Costs(), *point, 0.0, figures=start)
                best = better(best, record, 0, *point)
            try:
                for done in chain([first], rounds):
                    count = done.number + 1
                    due = count % experiment.evaluation.every == 0
                    record = None
                    if due or count == experiment.rounds:
                        record = recorder.record(
                            count,
                            done.costs,
                            done.x,
                            done.y,
                            exclusions=done.exclusions,
                        )
                        taken = getattr(done.server, "step", 0)
                        best = better(best, record, taken, done.x, done.y)
                    yield Step(done, record)
            except GeneratorExit:
                if record is None:
                    recorder.record(
                        count, done.costs, done.x, done.y, exclusions=done.exclusions
                    )
                raise
            finally:
                # Not into the directory of another run, which has taken its place.
                with suppress(MovedError):
                    journal.check_location()
                    write_solution(directory, Solution(done.x, done.y))


@contextmanager
def _explained(
    experiment: Experiment,
    work: Work,
    directory: Path,
    best: Callable[[], tuple[Best, int]],
) -> Iterator[None]:
    """Write down the cause if the run that is carried out inside ends badly."""

    def cause() -> str | None:
        point, since = best()
        return cause_of(spec_of(experiment, work)._replace(rounds=since), point)

    try:
        yield
    except NoUploadsError as error:
        found = cause()
        if found is None:
            raise
        write_cause(directory, found)
        raise NoUploadsError(f"{error} {found}") from error
    if outcome_of(list(read_records(directory))).is_good:
        return
    found = cause()
    if found is not None:
        write_cause(directory, found)


def spec_of(experiment: Experiment, work: Work) -> RunSpec:
    """Return what the engine is asked to do in an experiment.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1), participants=3)
        >>> spec_of(experiment, prepare_run(experiment)).participation
        UniformSample(devices=3)
    """
    chosen = experiment.participants
    return RunSpec(
        work.problem,
        experiment.federated_algorithm,
        work.devices,
        work.x,
        work.y,
        experiment.rounds,
        experiment.seed,
        FullParticipation() if chosen is None else UniformSample(chosen),
        work.weights,
        work.engine,
        experiment.limits,
    )


def _rounds(
    experiment: Experiment, work: Work, directory: Path
) -> Generator[Round, None, None]:
    keeping = experiment.checkpoints
    kept = Checkpoints(directory / CHECKPOINTS, keeping.every, keeping.keep)
    # Nobody looks at the rounds between two measurements but to show progress.
    every = experiment.evaluation.every
    return remaining_rounds_of(spec_of(experiment, work), kept, every)


def _engine(experiment: Experiment) -> Engine:
    engine = experiment.engine
    if not isinstance(engine, Sharded):
        return engine
    if engine.cores is not None:
        jax.config.update("jax_num_cpu_devices", engine.cores)
    return sharded.Sharded(chunk_size=engine.chunk_size)


def trackers_of(asked: Tracking, directory: Path) -> list[Tracker]:
    """Return trackers that have not begun.

    Args:
        asked: of an experiment.
        directory: of the run.

    Example:
        >>> [type(one).__name__ for one in trackers_of(Tracking(True), Path("runs"))]
        ['TensorBoard']
    """
    trackers: list[Tracker] = []
    if asked.tensorboard:
        trackers.append(TensorBoard(directory))
    if asked.mlflow is not None:
        trackers.append(MLflow(asked.mlflow, directory))
    if asked.wandb is not None:
        trackers.append(WeightsAndBiases(asked.wandb, directory))
    return trackers
