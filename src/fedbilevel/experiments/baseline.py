"""The untuned baseline of a run: the same training with x fixed at its start."""

import logging
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.engines.run import rounds_of
from fedbilevel.experiments.run import Step, Work, spec_of
from fedbilevel.experiments.run_directory.layout import BASELINE
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.schema import Experiment
from fedbilevel.regular_files import UnreadableError, read_regular
from fedbilevel.tracking.records import Record, read_records

logger = logging.getLogger("fedbilevel")


def train_baseline(
    experiment: Experiment, work: Work, directory: Path
) -> Generator[Step]:
    """Train y as a finished run did, with x fixed at its start, and keep its metrics.

    The algorithm, its samples and its number of steps are those of the run; its upper
    rate is 0. It is measured once, at the end, and `baseline.json` is written then:
    whoever stops iterating early leaves nothing behind.

    Args:
        experiment: that was carried out.
        work: the same as for the run, so that nothing is compiled anew.
        directory: of the run.

    Example:
        >>> train_baseline.__name__
        'train_baseline'
    """
    # Without an optimiser, which may move x by itself.
    algorithm = experiment.inner_algorithm
    # Zero times the rate keeps its type, so that the compiled program is the same.
    fixed = replace(algorithm, upper_rate=0 * algorithm.upper_rate)
    began = time.monotonic()
    spec = spec_of(experiment, work)._replace(algorithm=fixed)
    # As many rounds in a call as in the run: those of one round are another program.
    every = experiment.evaluation.every
    with run_lock(directory), closing(rounds_of(spec, every=every)) as rounds:
        for done in rounds:
            count, record = done.number + 1, None
            if count == experiment.rounds:
                jax.block_until_ready(done.y)
                seconds = time.monotonic() - began
                metrics = work.measure(done.x, done.y)
                record = Record(count, seconds, done.costs, metrics)
                with atomic_replace(directory / BASELINE) as unfinished:
                    unfinished.write_text(f"{record.line}\n")
            yield Step(done, record)


def read_baseline(directory: Path) -> Record | None:
    """Return the baseline of the run in a directory; none if it has none of its length.

    A baseline of fewer rounds than the run has by now is not the run's. A damaged file
    is none, and a warning says so.

    Example:
        >>> read_baseline(Path("nowhere"))
    """
    file = directory / BASELINE
    cure = "remove it; fedbilevel resume makes it anew."
    try:
        record = Record.parse(read_regular(file, cure).decode())
    except FileNotFoundError:
        return None
    except UnreadableError as error:
        logger.warning("%s", error)
        return None
    except ValueError:
        logger.warning("%s is damaged, and left aside; %s", file, cure)
        return None
    *_, rounds = 0, *(one.rounds for one in read_records(directory))
    return record if record.rounds == rounds else None


def lacks_baseline(experiment: Experiment, directory: Path) -> bool:
    """Return whether a finished run is still to be given its baseline.

    A run with an upper rate of 0 needs none: it is its own. An algorithm without an
    upper rate gets none, since nothing holds its x fixed.

    Example:
        >>> from fedbilevel import FedBiO
        >>> lacks_baseline(Experiment(FedBiO(0.1)), Path("nowhere"))
        True
        >>> lacks_baseline(Experiment(FedBiO(0.1, upper_rate=0.0)), Path("nowhere"))
        False
    """
    rate = getattr(experiment.algorithm, "upper_rate", None)
    moves = rate is not None and (rate != 0 or experiment.server_optimiser is not None)
    wanted = experiment.evaluation.baseline and moves
    return wanted and read_baseline(directory) is None
