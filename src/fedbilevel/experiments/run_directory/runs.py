"""Runs in their directories: read, write, and delete them."""

import shutil
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import text_of
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
        experiment: settings of the run.
        records: measurements, oldest first.
    """

    experiment: Experiment
    records: list[Record]


def read_run_experiment(directory: Path) -> Experiment:
    """Return the experiment of the run in a directory.

    Raises:
        ValueError: if the directory is not a run directory.

    Example:
        >>> read_run_experiment(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is not a run directory: it has no file experiment.toml; give
        the directory that fedbilevel run printed.
    """
    if directory.is_file():
        raise ValueError(_file_message(directory))
    if not (directory / EXPERIMENT).is_file():
        raise ValueError(
            f"{directory} is not a run directory: it has no file {EXPERIMENT}; give "
            "the directory that fedbilevel run printed."
        )
    return read_experiment(directory / EXPERIMENT)


def _file_message(file: Path) -> str:
    """Return the message for a file in place of a run directory."""
    run = file.parent / "runs" / file.stem
    if (run / EXPERIMENT).is_file():
        cure = f"give the run directory {run}."
    elif file.suffix == ".toml":
        cure = (
            "give the directory that fedbilevel run printed, or run the file with: "
            f"fedbilevel run {quote(str(file))}."
        )
    else:
        cure = "give the directory that fedbilevel run printed."
    return f"{file} is a file, not a run directory; {cure}"


def read_run(directory: Path) -> Run:
    """Return the run in a directory.

    Raises:
        ValueError: if the directory has no run, or a run without measurements.
    """
    run = Run(read_run_experiment(directory), list(read_records(directory)))
    failure = read_failure(directory)
    if not run.records and failure is not None:
        raise ValueError(
            f"{directory}: the run failed before its first measurement: "
            f"{failure.reason}"
        )
    if not run.records:
        raise ValueError(
            f"{directory}: the run has no measurements yet; resume it with: fedbilevel "
            f"resume {quote(str(directory))}."
        )
    return run


def resolve_run_directory(
    experiment: Experiment, file: Path, suffix: str
) -> tuple[Experiment, Path]:
    """Return an experiment without its `directory`, and the run directory.

    Args:
        experiment: experiment to run.
        file: file of the experiment.
        suffix: suffix of the name of the run directory.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1))
        >>> resolve_run_directory(experiment, Path("a/b.toml"), "")[1].as_posix()
        'a/runs/b'
    """
    directory = experiment.directory or file.parent / "runs" / file.stem
    if suffix:
        directory = directory.with_name(directory.name + suffix)
    return replace(experiment, directory=None), directory


def keep(experiment: Experiment, directory: Path) -> None:
    """Write the experiment of a run, and delete the results of an earlier end.

    The file of a custom problem is copied, because it may be edited after the run.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> directory = Path(tempfile.mkdtemp()) / "first"
        >>> keep(Experiment(FedBiO(0.1)), directory)
        >>> read_run_experiment(directory).rounds
        100
    """
    directory.mkdir(parents=True, exist_ok=True)
    atomic_write(directory / EXPERIMENT, text_of(experiment))
    (directory / PROBLEM).unlink(missing_ok=True)
    if (
        isinstance(experiment.problem, CustomProblem)
        and experiment.problem.file.is_file()
    ):
        atomic_write(directory / PROBLEM, experiment.problem.file.read_bytes())
    for name in (SOLUTION, BASELINE, FAILURE, CAUSE):
        (directory / name).unlink(missing_ok=True)


def problem_edited(experiment: Experiment, directory: Path) -> bool:
    """Return whether the file of a custom problem was edited since its run.

    Example:
        >>> from fedbilevel import FedBiO
        >>> problem_edited(Experiment(FedBiO(0.1)), Path("nowhere"))
        False
    """
    copy = directory / PROBLEM
    if not isinstance(experiment.problem, CustomProblem) or not copy.is_file():
        return False
    cure = "restore the file of the problem."
    try:
        current = read_regular(experiment.problem.file, cure)
    except FileNotFoundError:
        raise ValueError(
            f"problem.file: {experiment.problem.file} does not exist; restore it from "
            f"the copy of the run, {copy}."
        ) from None
    return current != read_regular(copy, cure)


def discard(directory: Path) -> None:
    """Delete the files of a run from its directory; other files stay.

    Raises:
        ValueError: if the directory is not a run directory, or has a run across sites,
            which server and sites know too, or is locked.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> directory = Path(tempfile.mkdtemp()) / "first"
        >>> keep(Experiment(FedBiO(0.1)), directory)
        >>> discard(directory)
        >>> (directory / EXPERIMENT).exists()
        False
    """
    read_run_experiment(directory)
    if (directory / RUN).exists():
        raise ValueError(
            f"{directory} has a run across sites, which cannot be replaced; choose "
            "another --directory."
        )
    with run_lock(directory):
        if (directory / CHECKPOINTS).is_symlink():
            # The target of the link may belong to another program.
            (directory / CHECKPOINTS).unlink()
        elif (directory / CHECKPOINTS).exists():
            shutil.rmtree(directory / CHECKPOINTS)
        # The experiment is last, so that an interrupted deletion can be repeated.
        for file in (RECORDS, SOLUTION, BASELINE, FAILURE, CAUSE, PROBLEM, EXPERIMENT):
            (directory / file).unlink(missing_ok=True)


def finished(experiment: Experiment, directory: Path) -> bool:
    """Return whether a run has measured its last round.

    Example:
        >>> from fedbilevel import FedBiO
        >>> finished(Experiment(FedBiO(0.1)), Path("nowhere"))
        False
    """
    *_, last = 0, *(record.rounds for record in read_records(directory))
    return last >= experiment.rounds
