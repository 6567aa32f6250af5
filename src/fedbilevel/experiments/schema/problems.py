"""The problems that an experiment file can name."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedbilevel.problems.ready_made import FromExamples, WithOwnData


@dataclass(frozen=True)
class Own:
    """A problem of your own: a Python file with a function `task`.

    In a federation, with `model` and `examples` in its place.

    Attributes:
        file: beside the experiment file, or anywhere by its whole path.
        sha256: of the file, in a job that names a file instead of bringing it; filled
            in by `fedbilevel federate` if `federation.reviewed` is true.

    Example:
        >>> Own(Path("ridge.py")).file.name
        'ridge.py'
    """

    file: Path
    sha256: str | None = None


ProblemChoice: TypeAlias = FromExamples | WithOwnData | Own
"""What a file can name: any problem of `registry.kinds`, or one by its place."""
