"""A run in its directory: what it was asked, where it is, what was measured of it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import (
    BASELINE,
    CAUSE,
    CHECKPOINTS,
    EXPERIMENT,
    FAILURE,
    PROBLEM,
    RUN,
    SOLUTION,
)
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.regular_files import read_regular
from fedbilevel.tracking.records import RECORDS, Record, read_records


class Run(NamedTuple):
    """A run in a directory.

    Attributes:
        experiment: what was asked for.
        records: what was measured, oldest first.

    Example:
        >>> Run._fields
        ('experiment', 'records')
    """

    experiment: Experiment
    records: list[Record]


def asked_of(directory: Path) -> Experiment:
    """Return what the run in a directory was asked to do.

    Raises:
        ValueError: if it is no directory of a run.

    Example:
        >>> asked_of(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere has no experiment.toml, so it is no directory of a run; see
        what fedbilevel run said at its end.
    """
    if not (directory / EXPERIMENT).is_file():
        raise ValueError(
            f"{directory} has no {EXPERIMENT}, so it is no directory of a run; see what "
            "fedbilevel run said at its end."
        )
    return read_experiment(directory / EXPERIMENT)


def read_run(directory: Path) -> Run:
    """Return the run in a directory.

    Raises:
        ValueError: if there is none, or nothing was measured of it.

    Example:
        >>> read_run.__name__
        'read_run'
    """
    run = Run(asked_of(directory), list(read_records(directory)))
    failure = read_failure(directory)
    if not run.records and failure is not None:
        raise ValueError(
            f"the run in {directory} failed before anything was measured: {failure.reason}"
        )
    if not run.records:
        raise ValueError(
            f"nothing was measured yet of the run in {directory}; go on with it by: "
            f"fedbilevel resume {directory}."
        )
    return run


def placed(experiment: Experiment, file: Path, suffix: str) -> tuple[Experiment, Path]:
    """Return an experiment as its run keeps it, and the directory of that run.

    Args:
        experiment: what is asked for.
        file: that it was read from.
        suffix: of the directory's name.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment, directory = placed(Experiment(FedBiO(0.1)), Path("a/b.toml"), "")
        >>> directory.as_posix()
        'a/runs/b'
    """
    directory = experiment.directory or file.parent / "runs" / file.stem
    if suffix:
        directory = directory.with_name(directory.name + suffix)
    return replace(experiment, directory=None), directory


def keep(experiment: Experiment, directory: Path) -> None:
    """Write down what a run is asked to do, and forget how an earlier one ended.

    The file of a custom problem is copied: it may be edited after the run.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> directory = Path(tempfile.mkdtemp()) / "first"
        >>> keep(Experiment(FedBiO(0.1)), directory)
        >>> asked_of(directory).rounds
        100
    """
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_replace(directory / EXPERIMENT) as unfinished:
        write_experiment(experiment, unfinished)
    (directory / PROBLEM).unlink(missing_ok=True)
    if (
        isinstance(experiment.problem, CustomProblem)
        and experiment.problem.file.is_file()
    ):
        with atomic_replace(directory / PROBLEM) as unfinished:
            shutil.copyfile(experiment.problem.file, unfinished)
    for ending in (SOLUTION, BASELINE, FAILURE, CAUSE):
        (directory / ending).unlink(missing_ok=True)


def problem_edited(experiment: Experiment, directory: Path) -> bool:
    """Whether the file of a custom problem is another than that of a run.

    Example:
        >>> from fedbilevel import FedBiO
        >>> problem_edited(Experiment(FedBiO(0.1)), Path("nowhere"))
        False
    """
    copy = directory / PROBLEM
    if not isinstance(experiment.problem, CustomProblem) or not copy.is_file():
        return False
    cure = "put the problem's file back."
    try:
        now = read_regular(experiment.problem.file, cure)
    except FileNotFoundError:
        raise ValueError(
            f"problem.file: there is no {experiment.problem.file}; as it was run it is "
            f"{copy}."
        ) from None
    return now != read_regular(copy, cure)


def discard(directory: Path) -> None:
    """Delete a run from its directory; files that no run writes stay.

    Raises:
        ValueError: if it is no run directory, or of a run across sites, which other
            machines know too, or another process is running in it.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> directory = Path(tempfile.mkdtemp()) / "first"
        >>> keep(Experiment(FedBiO(0.1)), directory)
        >>> discard(directory)
        >>> (directory / EXPERIMENT).exists()
        False
    """
    asked_of(directory)
    if (directory / RUN).exists():
        raise ValueError(
            f"{directory} holds a run across sites, which is not replaced; give the "
            "experiment another directory."
        )
    with run_lock(directory):
        if (directory / CHECKPOINTS).is_symlink():
            # What it leads to may be somebody else's.
            (directory / CHECKPOINTS).unlink()
        elif (directory / CHECKPOINTS).exists():
            shutil.rmtree(directory / CHECKPOINTS)
        # The settings go last: until then it is known as a run directory.
        for file in (RECORDS, SOLUTION, BASELINE, FAILURE, CAUSE, PROBLEM, EXPERIMENT):
            (directory / file).unlink(missing_ok=True)


def finished(experiment: Experiment, directory: Path) -> bool:
    """Whether all rounds of a run were made and measured.

    Example:
        >>> from fedbilevel import FedBiO
        >>> finished(Experiment(FedBiO(0.1)), Path("nowhere"))
        False
    """
    *_, last = 0, *(record.rounds for record in read_records(directory))
    return last >= experiment.rounds
