"""The protocol of a ready-made problem: a dataclass of settings that builds a task."""

from collections.abc import Callable
from importlib.resources import files
from typing import Protocol, TypeAlias, runtime_checkable

from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import Picture
from fedbilevel.problems.split import SplitData
from fedbilevel.problems.task import Task


@runtime_checkable
class DataProblem(Protocol):
    """A problem built from the data set that an experiment file specifies."""

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data, initial point and metrics."""


@runtime_checkable
class BundledProblem(Protocol):
    """A problem with bundled data."""

    def task(self) -> Task:
        """Return the problem with its data, initial point and metrics."""


BuiltInProblem: TypeAlias = DataProblem | BundledProblem
"""A dataclass whose fields are settings. It may also have a `TEMPLATE`, the experiment
file that `fedbilevel new NAME --ready` writes, and implement `PictureProblem`."""


def template(name: str) -> str:
    """Return the text of a file in `problems/templates`.

    Example:
        >>> template("regularisation").splitlines()[0]
        'rounds = 60'
    """
    return (files(__package__) / "templates" / f"{name}.toml").read_text("utf-8")


@runtime_checkable
class PictureProblem(Protocol):
    """A problem that draws its solution."""

    def pictures(
        self,
        x: Upper,
        data: Callable[[], SplitData],
        shape: tuple[int, int] | None,
    ) -> list[Picture]:
        """Return pictures of a solution.

        Args:
            x: solution, the upper variable.
            data: function that loads the examples of the problem.
            shape: height and width of an image, if features are pixels.
        """
