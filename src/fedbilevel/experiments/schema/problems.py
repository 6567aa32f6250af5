"""Settings of the problems that an experiment file can select."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedbilevel.problems.built_in import BundledProblem, DataProblem


@dataclass(frozen=True)
class CustomProblem:
    """A custom problem: a Python file with a function `task`.

    In a federation the file has the functions `model` and `examples` instead.

    Attributes:
        file: path of the Python file (relative to the experiment file, or absolute).
        sha256: SHA-256 digest of the file in a job without code; set by `fedbilevel
            federate` if `federation.local_code` is true.
    """

    file: Path
    sha256: str | None = None


ProblemChoice: TypeAlias = DataProblem | BundledProblem | CustomProblem
"""A problem that a file can select: one of `registry.list_types`, or `module:Class`."""
