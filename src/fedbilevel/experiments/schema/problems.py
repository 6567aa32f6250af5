"""The problems that an experiment file can name."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedbilevel.problems.ready_made import FromExamples, WithBundledData


@dataclass(frozen=True)
class CustomProblem:
    """A problem of your own: a Python file with a function `task`.

    In a federation, with `model` and `examples` in its place.

    Attributes:
        file: beside the experiment file, or anywhere by its whole path.
        sha256: of the file, in a job that names a file instead of bringing it; filled
            in by `fedbilevel federate` if `federation.local_code` is true.

    Example:
        >>> CustomProblem(Path("ridge.py")).file.name
        'ridge.py'
    """

    file: Path
    sha256: str | None = None


ProblemChoice: TypeAlias = FromExamples | WithBundledData | CustomProblem
"""What a file can name: any problem of `registry.list_types`, or one by its place."""
