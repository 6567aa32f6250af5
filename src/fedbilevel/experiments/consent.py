"""Problem files that this user has had executed, known by their place and content."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from fedbilevel.experiments.choices import Experiment, Own

FILE = Path("fedbilevel") / "executed"
"""Below the folder that a user's programs keep their state in."""


def remember_problem(experiment: Experiment) -> None:
    """Note that the user has named an experiment whose problem's file is executed.

    Where nothing can be noted, the user is asked again.

    Example:
        >>> from fedbilevel import FedBiO
        >>> remember_problem(Experiment(FedBiO(0.1)))
    """
    mark = _mark(experiment)
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
    mark = _mark(experiment)
    return mark is None or mark in _marks()


def _mark(experiment: Experiment) -> str | None:
    """Return a digest of where a problem's file is and of what is in it.

    Of its place too, since it may import what lies beside it.
    """
    if not isinstance(experiment.problem, Own):
        return None
    file = experiment.problem.file
    if not file.is_file():
        return None
    content = hashlib.sha256(file.read_bytes()).digest()
    return hashlib.sha256(os.fsencode(file.resolve()) + b"\0" + content).hexdigest()


def _marks() -> set[str]:
    try:
        return set(_file().read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    # As the specification of these folders says: what is no whole path is not one.
    if state and Path(state).is_absolute():
        return Path(state) / FILE
    return Path(os.path.expanduser("~")) / ".local" / "state" / FILE
