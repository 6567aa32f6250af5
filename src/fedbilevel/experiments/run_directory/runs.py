"""A run in its folder: what it was asked, where it is, what was measured of it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import replacing
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import (
    BASELINE,
    CAUSE,
    CHECKPOINTS,
    EXPERIMENT,
    FAILURE,
    LEARNT,
    PROBLEM,
    RUN,
)
from fedbilevel.experiments.run_directory.lock import claimed
from fedbilevel.experiments.schema import Experiment, Own
from fedbilevel.regular_files import read_regular
from fedbilevel.tracking.records import RECORDS, Record, read_records


class Run(NamedTuple):
    """A run in a folder.

    Attributes:
        experiment: what was asked for.
        records: what was measured, oldest first.

    Example:
        >>> Run._fields
        ('experiment', 'records')
    """

    experiment: Experiment
    records: list[Record]


def asked_of(folder: Path) -> Experiment:
    """Return what the run in a folder was asked to do.

    Raises:
        ValueError: if it is no folder of a run.

    Example:
        >>> asked_of(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere has no experiment.toml, so it is no folder of a run; see
        what fedbilevel run said at its end.
    """
    if not (folder / EXPERIMENT).is_file():
        raise ValueError(
            f"{folder} has no {EXPERIMENT}, so it is no folder of a run; see what "
            "fedbilevel run said at its end."
        )
    return read_experiment(folder / EXPERIMENT)


def read_run(folder: Path) -> Run:
    """Return the run in a folder.

    Raises:
        ValueError: if there is none, or nothing was measured of it.

    Example:
        >>> read_run.__name__
        'read_run'
    """
    run = Run(asked_of(folder), list(read_records(folder)))
    failure = read_failure(folder)
    if not run.records and failure is not None:
        raise ValueError(
            f"the run in {folder} failed before anything was measured: {failure.reason}"
        )
    if not run.records:
        raise ValueError(
            f"nothing was measured yet of the run in {folder}; go on with it by: "
            f"fedbilevel resume {folder}."
        )
    return run


def placed(experiment: Experiment, file: Path, suffix: str) -> tuple[Experiment, Path]:
    """Return an experiment as its run keeps it, and the folder of that run.

    Args:
        experiment: what is asked for.
        file: that it was read from.
        suffix: of the folder's name.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment, folder = placed(Experiment(FedBiO(0.1)), Path("a/b.toml"), "")
        >>> folder.as_posix()
        'a/runs/b'
    """
    folder = experiment.folder or file.parent / "runs" / file.stem
    if suffix:
        folder = folder.with_name(folder.name + suffix)
    return replace(experiment, folder=None), folder


def keep(experiment: Experiment, folder: Path) -> None:
    """Write down what a run is asked to do, and forget how an earlier one ended.

    The file of a custom problem is copied: it may be edited after the run.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> folder = Path(tempfile.mkdtemp()) / "first"
        >>> keep(Experiment(FedBiO(0.1)), folder)
        >>> asked_of(folder).rounds
        100
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / EXPERIMENT) as unfinished:
        write_experiment(experiment, unfinished)
    (folder / PROBLEM).unlink(missing_ok=True)
    if isinstance(experiment.problem, Own) and experiment.problem.file.is_file():
        with replacing(folder / PROBLEM) as unfinished:
            shutil.copyfile(experiment.problem.file, unfinished)
    for ending in (LEARNT, BASELINE, FAILURE, CAUSE):
        (folder / ending).unlink(missing_ok=True)


def problem_edited(experiment: Experiment, folder: Path) -> bool:
    """Whether the file of a custom problem is another than that of a run.

    Example:
        >>> from fedbilevel import FedBiO
        >>> problem_edited(Experiment(FedBiO(0.1)), Path("nowhere"))
        False
    """
    copy = folder / PROBLEM
    if not isinstance(experiment.problem, Own) or not copy.is_file():
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


def discard(folder: Path) -> None:
    """Delete a run from its directory; files that no run writes stay.

    Raises:
        ValueError: if it is no run directory, or of a run across sites, which other
            machines know too, or another process is running in it.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> folder = Path(tempfile.mkdtemp()) / "first"
        >>> keep(Experiment(FedBiO(0.1)), folder)
        >>> discard(folder)
        >>> (folder / EXPERIMENT).exists()
        False
    """
    asked_of(folder)
    if (folder / RUN).exists():
        raise ValueError(
            f"{folder} holds a run across sites, which is not replaced; give the "
            "experiment another folder."
        )
    with claimed(folder):
        if (folder / CHECKPOINTS).is_symlink():
            # What it leads to may be somebody else's.
            (folder / CHECKPOINTS).unlink()
        elif (folder / CHECKPOINTS).exists():
            shutil.rmtree(folder / CHECKPOINTS)
        # The settings go last: until then it is known as a run directory.
        for file in (RECORDS, LEARNT, BASELINE, FAILURE, CAUSE, PROBLEM, EXPERIMENT):
            (folder / file).unlink(missing_ok=True)


def finished(experiment: Experiment, folder: Path) -> bool:
    """Whether all rounds of a run were made and measured.

    Example:
        >>> from fedbilevel import FedBiO
        >>> finished(Experiment(FedBiO(0.1)), Path("nowhere"))
        False
    """
    *_, last = 0, *(record.rounds for record in read_records(folder))
    return last >= experiment.rounds
