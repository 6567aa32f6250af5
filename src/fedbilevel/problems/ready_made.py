"""What a ready-made problem is: a dataclass of settings that makes a task."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from fedbilevel.mathematics.problem import Upper
from fedbilevel.picture import Picture
from fedbilevel.problems.split import SplitData
from fedbilevel.problems.task import Task


@runtime_checkable
class FromExamples(Protocol):
    """A problem that is built from the examples which a file asks for."""

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data, where it starts and what is measured."""


@runtime_checkable
class WithBundledData(Protocol):
    """A problem that brings its data."""

    def task(self) -> Task:
        """Return the problem with its data, where it starts and what is measured."""


ReadyMade: TypeAlias = FromExamples | WithBundledData
"""A dataclass whose fields are settings. It may also have `TEMPLATE`, the experiment
file that `fedbilevel new NAME --ready` writes, and be `WithPictures`."""


@runtime_checkable
class WithPictures(Protocol):
    """A problem whose solutions have pictures of their own."""

    def pictures(
        self,
        x: Upper,
        data: Callable[[], SplitData],
        shape: tuple[int, int] | None,
    ) -> list[Picture]:
        """Return what a person would rather look at than at the numbers of x.

        Args:
            x: what was learnt.
            data: loads the examples that the problem was built from.
            shape: height and width of an image whose pixels the features are, if any.
        """
