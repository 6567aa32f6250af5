"""The untuned baseline of a run: the same training with x fixed at its start."""

import logging
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote

import jax

from fedbilevel.algorithms.step_sizes import upper_steps, with_values
from fedbilevel.algorithms.whole_batches import with_whole_batches
from fedbilevel.atomic_write import atomic_write
from fedbilevel.engines.run import Run
from fedbilevel.experiments.run import PreparedRun, Step, run_of
from fedbilevel.experiments.run_directory.layout import BASELINE
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.schema import Experiment
from fedbilevel.regular_files import UnreadableError, read_regular
from fedbilevel.tracking.records import Record, read_records
from fedbilevel.transforms.transformed import with_transforms

logger = logging.getLogger("fedbilevel")


def train_baseline(
    experiment: Experiment, prepared: PreparedRun, directory: Path
) -> Generator[Step]:
    """Train y as a finished run did, with x fixed at its start, and save its metrics.

    The algorithm, its samples and its number of steps are those of the run; its upper
    rate is 0. The baseline is evaluated once, at the end, and `baseline.json` is
    written then: a caller that stops iterating early leaves no file.

    Args:
        experiment: experiment of the run.
        prepared: the prepared run; the same object as for the run, so that no program
            is compiled again.
        directory: run directory.
    """
    start = time.monotonic()
    run = baseline_run(experiment, prepared)
    # A call has as many rounds as in the run: another number is another program.
    every = experiment.evaluation.every
    with (
        run_lock(directory),
        closing(run.start(every=every, progress=True)) as rounds,
    ):
        for result in rounds:
            count, record = result.number + 1, None
            if count == experiment.rounds:
                jax.block_until_ready(result.y)
                seconds = time.monotonic() - start
                metrics = prepared.measure(result.x, result.y)
                record = Record(count, seconds, result.costs, metrics)
                atomic_write(directory / BASELINE, f"{record.line}\n")
            yield Step(result, record)


def baseline_run(experiment: Experiment, prepared: PreparedRun) -> Run:
    """Return the baseline of a run.

    Example:
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.experiments.run import prepare_run
        >>> experiment = Experiment(FedBiO(0.1))
        >>> baseline_run(experiment, prepare_run(experiment)).algorithm.upper_rate
        0.0
    """
    # The server optimiser is omitted: it may move x even if the upper rate is 0.
    algorithm = experiment.inner_algorithm
    # Zero times the rate keeps its type, so that the compiled program is the same.
    rates = {item.name: 0 * item.value for item in upper_steps(algorithm)}
    fixed = with_values(algorithm, rates)
    if experiment.whole_batches:
        fixed = with_whole_batches(fixed)
    # Clips and codes change y as well, so the baseline has them too.
    if transforms := experiment.transforms.all:
        fixed = with_transforms(fixed, *transforms)
    return replace(run_of(experiment, prepared), algorithm=fixed)


def read_baseline(directory: Path) -> Record | None:
    """Return the baseline of the run in a directory; None without one.

    A baseline with fewer rounds than the run is ignored, and a damaged file is
    ignored with a warning.

    Example:
        >>> read_baseline(Path("nowhere"))
    """
    file = directory / BASELINE
    cure = (
        "remove it, and train the baseline again with: fedbilevel resume "
        f"{quote(str(directory))}."
    )
    try:
        record = Record.parse(read_regular(file, cure).decode())
    except FileNotFoundError:
        return None
    except UnreadableError as error:
        logger.warning("%s", error)
        return None
    except ValueError:
        logger.warning("%s is damaged and is ignored; %s", file, cure)
        return None
    *_, rounds = 0, *(measured.rounds for measured in read_records(directory))
    return record if record.rounds == rounds else None


def lacks_baseline(experiment: Experiment, directory: Path) -> bool:
    """Return whether the baseline of a finished run is still to be trained.

    Example:
        >>> from fedbilevel import FedBiO
        >>> lacks_baseline(Experiment(FedBiO(0.1)), Path("nowhere"))
        True
    """
    return has_baseline(experiment) and read_baseline(directory) is None


def has_baseline(experiment: Experiment) -> bool:
    """Return whether the baseline is part of an experiment.

    A run with an upper rate of 0 is its own baseline. An algorithm without an upper
    rate has no baseline: no setting keeps its x fixed.

    Example:
        >>> from fedbilevel import FedBiO
        >>> has_baseline(Experiment(FedBiO(0.1, upper_rate=0.0)))
        False
    """
    rates = [item.value for item in upper_steps(experiment.inner_algorithm)]
    moves = any(rates) or (bool(rates) and experiment.server_optimiser is not None)
    # A baseline is a second use of the same data, which the ε of a run does not count.
    is_private = experiment.transforms.is_private
    return experiment.evaluation.baseline and moves and not is_private
