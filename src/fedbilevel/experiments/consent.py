"""Problem files that this user has run, or has allowed to be executed."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from fedbilevel.experiments.schema import CustomProblem, Experiment

FILE = Path("fedbilevel") / "executed"
"""Below the directory that a user's programs keep their state in."""


def remember_problem(experiment: Experiment) -> None:
    """Note that the user has run an experiment file, and so the file of its problem.

    The file may be edited then: it is the user's own. Where nothing can be noted, the
    user is asked again.

    Example:
        >>> from fedbilevel import FedBiO
        >>> remember_problem(Experiment(FedBiO(0.1)))
    """
    _note(_place(experiment))


def allow_problem(experiment: Experiment) -> None:
    """Note that the user has allowed a problem's file to be executed, as it is now.

    Example:
        >>> from fedbilevel import FedBiO
        >>> allow_problem(Experiment(FedBiO(0.1)))
    """
    _note(_place_and_content(experiment))


def _note(mark: str | None) -> None:
    if mark is None or mark in _marks():
        return
    with suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _file().open("a", encoding="ascii") as noted:
            noted.write(f"{mark}\n")


def is_known_problem(experiment: Experiment) -> bool:
    """Whether executing an experiment's problem is nothing new to this user.

    True of ready-made problems, and of files that are not there.

    Example:
        >>> from fedbilevel import FedBiO
        >>> is_known_problem(Experiment(FedBiO(0.1)))
        True
    """
    place = _place(experiment)
    if place is None:
        return True
    return not _marks().isdisjoint({place, _place_and_content(experiment)})


def _place(experiment: Experiment) -> str | None:
    """Return a digest of where a problem's file is."""
    if (
        not isinstance(experiment.problem, CustomProblem)
        or not experiment.problem.file.is_file()
    ):
        return None
    return hashlib.sha256(os.fsencode(experiment.problem.file.resolve())).hexdigest()


def _place_and_content(experiment: Experiment) -> str | None:
    """Return a digest of the file and of its place, since it may import from there."""
    place = _place(experiment)
    if place is None:
        return None
    assert isinstance(experiment.problem, CustomProblem), "others have no place"
    content = hashlib.sha256(experiment.problem.file.read_bytes()).hexdigest()
    return hashlib.sha256(f"{place} {content}".encode()).hexdigest()


def _marks() -> set[str]:
    try:
        return set(_file().read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    # As the specification of these directories says: what is no whole path is not one.
    if state and Path(state).is_absolute():
        return Path(state) / FILE
    return Path(os.path.expanduser("~")) / ".local" / "state" / FILE
