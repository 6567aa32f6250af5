"""A list of problem files that this user has run or allowed to be executed."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from fedbilevel.experiments.schema import CustomProblem, Experiment

FILE = Path("fedbilevel") / "executed"
"""Path of the list below the user's state directory."""


def remember_problem(experiment: Experiment) -> None:
    """Add the problem file of an experiment that the user has run to the list.

    The user may edit the file afterwards: the list has its path only. If the list
    cannot be written, the user is asked again.

    Example:
        >>> from fedbilevel import FedBiO
        >>> remember_problem(Experiment(FedBiO(0.1)))
    """
    _add(_path_digest(experiment))


def allow_problem(experiment: Experiment) -> None:
    """Add a problem file that the user allows to be executed, with its content.

    Example:
        >>> from fedbilevel import FedBiO
        >>> allow_problem(Experiment(FedBiO(0.1)))
    """
    _add(_content_digest(experiment))


def _add(digest: str | None) -> None:
    if digest is None or digest in _digests():
        return
    with suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _file().open("a", encoding="ascii") as opened:
            opened.write(f"{digest}\n")


def is_known_problem(experiment: Experiment) -> bool:
    """Return whether the user has run or allowed the problem file of an experiment.

    True also for ready-made problems and for files that do not exist.

    Example:
        >>> from fedbilevel import FedBiO
        >>> is_known_problem(Experiment(FedBiO(0.1)))
        True
    """
    digest = _path_digest(experiment)
    if digest is None:
        return True
    return not _digests().isdisjoint({digest, _content_digest(experiment)})


def _path_digest(experiment: Experiment) -> str | None:
    """Return a digest of the path of a problem file."""
    if (
        not isinstance(experiment.problem, CustomProblem)
        or not experiment.problem.file.is_file()
    ):
        return None
    return hashlib.sha256(os.fsencode(experiment.problem.file.resolve())).hexdigest()


def _content_digest(experiment: Experiment) -> str | None:
    """Return a digest of a file and its path: it may import files beside it."""
    path = _path_digest(experiment)
    if path is None:
        return None
    assert isinstance(experiment.problem, CustomProblem), "others have no file"
    content = hashlib.sha256(experiment.problem.file.read_bytes()).hexdigest()
    return hashlib.sha256(f"{path} {content}".encode()).hexdigest()


def _digests() -> set[str]:
    try:
        return set(_file().read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    # The XDG specification requires that relative paths are ignored.
    if state and Path(state).is_absolute():
        return Path(state) / FILE
    return Path(os.path.expanduser("~")) / ".local" / "state" / FILE
