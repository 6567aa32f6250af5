"""Run an experiment: its rounds, measurements, records and checkpoints."""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import jax

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.engines.checkpoints.options import Checkpoints
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import Exclusions
from fedbilevel.engines.inspection import NoUploadsError
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.participation import FullParticipation, UniformSample
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.round import Round
from fedbilevel.engines.run import Run
from fedbilevel.engines.sharded import engine as sharded
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.causes import Best, better, cause_of
from fedbilevel.experiments.files.write import settings_of
from fedbilevel.experiments.measure import measure_start, measurements
from fedbilevel.experiments.outcome import outcome_of, write_cause
from fedbilevel.experiments.run_directory.failures import record_failure
from fedbilevel.experiments.run_directory.layout import (
    CHECKPOINTS,
    EXPERIMENT,
    has_checkpoints,
)
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.run_directory.recorder import Recorder
from fedbilevel.experiments.run_directory.runs import (
    finished,
    keep,
    read_run_experiment,
)
from fedbilevel.experiments.run_directory.solution import Solution, write_solution
from fedbilevel.experiments.schema import Experiment, Sharded, Tracking
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.plurals import count_noun, there_are
from fedbilevel.tracking import MLflow, TensorBoard, Tracker, WeightsAndBiases
from fedbilevel.tracking.delivery import track
from fedbilevel.tracking.records import Journal, MovedError, Record, read_records
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.transformed import noise_of

logger = logging.getLogger("fedbilevel")


class Step(NamedTuple):
    """A finished round of an experiment.

    Attributes:
        round: the round; between two measurements some rounds may be skipped.
        record: the measurement after the round; None between two measurements.
    """

    round: Round
    record: Record | None


class PreparedRun(NamedTuple):
    """The arguments of `run` for an experiment, and the function that measures it.

    Attributes:
        problem: bilevel problem.
        devices: devices with their data, or the sites that have the data.
        x: start of the upper variable.
        y: start of the lower variable.
        weights: weights of the devices, for both losses or for each; None for equal
            weights.
        limits: limits on uploads.
        engine: engine that computes the devices' work.
        measure: function that returns the metrics of x and y.
    """

    problem: BilevelProblem
    devices: Devices
    x: Upper
    y: Lower
    weights: Weighting
    limits: Limits
    engine: Engine
    measure: Callable[[Upper, Lower], dict[str, float]]


def prepare_run(experiment: Experiment) -> PreparedRun:
    """Return the prepared run of an experiment whose data are on this machine.

    Example:
        >>> from fedbilevel import FedBiO
        >>> prepare_run(Experiment(FedBiO(0.1))).devices.device_count
        8
    """
    # JAX reads the number of cores once, before its first computation.
    engine = _engine(experiment)
    task = build_task(experiment)
    weights = weights_of(experiment, task.devices)
    measure = measurements(task, weights, experiment.evaluation.metrics)
    return PreparedRun(
        task.problem,
        task.devices,
        task.x,
        task.y,
        weights,
        experiment.limits,
        engine,
        measure,
    )


def run_experiment(
    experiment: Experiment,
    directory: Path,
    resume: bool,
    prepare: Callable[[Experiment], PreparedRun] = prepare_run,
) -> Generator[Step]:
    """Run an experiment in a directory, and yield its rounds.

    The directory is locked during the run. Trackers receive each record and the end of
    the run. A caller that stops iterating early closes the generator; the last round
    is then measured. The reason of a divergence is written to the directory
    (`failures`), and so is the step that was too large, if the run ends badly.

    Args:
        experiment: experiment to run.
        directory: run directory.
        resume: whether to resume from the newest checkpoint, if there is one.
        prepare: function that returns the prepared run of the experiment.

    Raises:
        ValueError: if there is a checkpoint and `resume` is False, or no checkpoint
            can be used, or a loss is not finite at the start.
        NoUploadsError: if all devices were excluded; the message names the step that
            was too large.
    """
    prepared = prepare(experiment)
    with run_lock(directory):
        has_run = has_checkpoints(directory)
        if has_run and not resume:
            raise ValueError(occupied_message(directory))
        rounds = _rounds(experiment, prepared, directory)
        if has_run and not has_checkpoints(directory):
            raise ValueError(
                f"{directory}: all checkpoints are damaged, and were renamed to "
                "damaged_*; start the run again in another --directory."
            )
        if has_run and finished(experiment, directory):
            for result in rounds:
                if result.is_last:
                    # A run that was killed after its last record has no solution yet.
                    write_solution(directory, Solution(result.x, result.y))
                yield Step(result, None)
            return
        # A run that was killed before its first checkpoint has fewer rounds than this.
        limit = 2 * experiment.checkpoints.every
        lost = (record.rounds >= limit for record in read_records(directory))
        if resume and not has_run and any(lost):
            raise ValueError(
                f"{directory} has records of a run but no checkpoints, so the run "
                "would start again and overwrite the records; restore its directory "
                f"{CHECKPOINTS!r}, or run the experiment in another --directory."
            )
        if has_run and not any(read_records(directory)):
            logger.warning(
                "%s has checkpoints but no records: earlier measurements are lost. The "
                "run continues without them.",
                directory,
            )
        point = prepared.x, prepared.y
        noise = noise_of(experiment.federated_algorithm)
        if noise is not None and noise.from_seed:
            logger.warning(
                "The noise follows from the seed of the run, so it protects nobody, "
                "and the run has no ε."
            )
        elif noise is not None:
            by_example = isinstance(noise, ExampleNoise)
            logger.warning(
                "ε covers x and y of all rounds%s. It does not cover the losses and "
                "metrics of %s, which are measured on the devices' data without noise.",
                ", and all uploads" if by_example else "",
                directory,
            )
        start = None if has_run else measure_start(prepared.measure, *point)
        keep(experiment, directory)
        tracking = track(
            trackers_of(experiment.tracking, directory),
            directory.absolute().name,
            settings_of(experiment),
            resume=has_run,
        )
        with record_failure(directory), tracking as send, closing(rounds):
            yield from _run_rounds(experiment, prepared, start, rounds, directory, send)


def occupied_message(directory: Path) -> str:
    """Return the message that refuses a new run in the directory of another run."""
    command = f"fedbilevel resume {quote(str(directory))}"
    if (directory / EXPERIMENT).is_file() and finished(
        former := read_run_experiment(directory), directory
    ):
        return (
            f"{directory} already has a finished run of "
            f"{count_noun(former.rounds, 'round')}; extend it with: {command} --rounds "
            f"{2 * former.rounds}, or choose another --directory."
        )
    return (
        f"{directory} already has a run; resume it with: {command}, or choose another "
        "--directory."
    )


def _run_rounds(
    experiment: Experiment,
    prepared: PreparedRun,
    start: Mapping[str, float] | None,
    rounds: Iterator[Round],
    directory: Path,
    send: Callable[[Record], None],
) -> Generator[Step]:
    start_time, record, count = time.monotonic(), None, 0
    point = prepared.x, prepared.y
    best = Best(inf, 0, 0, *point)

    def since_best() -> tuple[Best, int]:
        return best, count - best.rounds

    with _write_cause_of_bad_end(experiment, prepared, directory, since_best):
        first = next(rounds)
        with Journal(directory, first.number) as journal:
            recorder = Recorder(journal, send, prepared.measure, start_time)
            if not first.number:
                noise = noise_of(experiment.federated_algorithm)
                has_epsilon = noise is not None and not noise.from_seed
                record = recorder.record(
                    0,
                    Costs(),
                    *point,
                    0.0,
                    metrics=start,
                    epsilon=0.0 if has_epsilon else None,
                )
                best = better(best, record, 0, *point)
            try:
                for result in chain([first], rounds):
                    count = result.number + 1
                    due = count % experiment.evaluation.every == 0
                    record = None
                    if due or result.is_last:
                        record = _record(recorder, result)
                        step = getattr(result.server, "step", 0)
                        best = better(best, record, step, result.x, result.y)
                    yield Step(result, record)
            except GeneratorExit:
                if record is None:
                    _record(recorder, result)
                raise
            finally:
                # The directory may have been moved and replaced by another run's.
                with suppress(MovedError):
                    journal.check_location()
                    write_solution(directory, Solution(result.x, result.y))


def _record(recorder: Recorder, result: Round) -> Record:
    return recorder.record(
        result.number + 1,
        result.costs,
        result.x,
        result.y,
        # Exclusions show who participated and whose data are not finite.
        exclusions=Exclusions() if result.spending else result.exclusions,
        epsilon=result.epsilon,
    )


@contextmanager
def _write_cause_of_bad_end(
    experiment: Experiment,
    prepared: PreparedRun,
    directory: Path,
    best: Callable[[], tuple[Best, int]],
) -> Iterator[None]:
    """Write the cause to the run directory if the run inside the context ends badly."""

    def find_cause() -> str | None:
        point, rounds = best()
        return cause_of(replace(run_of(experiment, prepared), rounds=rounds), point)

    try:
        yield
    except NoUploadsError as error:
        cause = find_cause()
        if cause is None:
            raise
        write_cause(directory, cause)
        raise NoUploadsError(f"{error} {cause}") from error
    if outcome_of(list(read_records(directory))).is_good:
        return
    cause = find_cause()
    if cause is not None:
        write_cause(directory, cause)


def run_of(experiment: Experiment, prepared: PreparedRun) -> Run:
    """Return the run of an experiment.

    Raises:
        ValueError: if there are fewer devices than participants.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1), participants=3)
        >>> run_of(experiment, prepare_run(experiment)).participation
        UniformSample(devices=3)
    """
    count, devices = experiment.participants, prepared.devices.device_count
    if count is not None and count > devices:
        raise ValueError(
            f"participants is {count}, but {there_are(devices, 'device')}. Give a "
            f"number from 1 to {devices}."
        )
    return Run(
        prepared.problem,
        experiment.federated_algorithm,
        prepared.devices,
        prepared.x,
        prepared.y,
        rounds=experiment.rounds,
        seed=experiment.seed,
        participation=FullParticipation() if count is None else UniformSample(count),
        weights=prepared.weights,
        engine=prepared.engine,
        limits=prepared.limits,
    )


def _rounds(
    experiment: Experiment, prepared: PreparedRun, directory: Path
) -> Generator[Round, None, None]:
    settings = experiment.checkpoints
    checkpoints = Checkpoints(directory / CHECKPOINTS, settings.every, settings.keep)
    # Rounds between two measurements are used only to show progress.
    every = experiment.evaluation.every
    return run_of(experiment, prepared).resume(checkpoints, every, progress=True)


def _engine(experiment: Experiment) -> Engine:
    engine = experiment.engine
    if not isinstance(engine, Sharded):
        return engine
    if engine.cores is not None:
        jax.config.update("jax_num_cpu_devices", engine.cores)
    return sharded.Sharded(chunk_size=engine.chunk_size)


def trackers_of(tracking: Tracking, directory: Path) -> list[Tracker]:
    """Return the trackers of an experiment, before their start.

    Args:
        tracking: settings of the trackers.
        directory: run directory.

    Example:
        >>> trackers = trackers_of(Tracking(True), Path("runs"))
        >>> [type(tracker).__name__ for tracker in trackers]
        ['TensorBoard']
    """
    trackers: list[Tracker] = []
    if tracking.tensorboard:
        trackers.append(TensorBoard(directory))
    if tracking.mlflow is not None:
        trackers.append(MLflow(tracking.mlflow, directory))
    if tracking.wandb is not None:
        trackers.append(WeightsAndBiases(tracking.wandb, directory))
    return trackers
