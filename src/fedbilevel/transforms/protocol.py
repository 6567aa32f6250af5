"""The protocols of transforms: values that change the uploads of any algorithm."""

from typing import Any, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Array, Float, PyTree

Bounds: TypeAlias = Float[Array, "parts"]
"""The largest norm of each part of an update."""


@runtime_checkable
class ClipRule(Protocol):
    """A rule that clips the parts of an update, each to a separate norm."""

    def first_bounds(self, variables: int) -> Bounds:
        """Return the bounds of the first exchange of a phase.

        Args:
            variables: number of variables of the update.
        """

    def split(self, update: tuple[PyTree, ...]) -> list[PyTree]:
        """Return the parts of an update that are clipped separately."""

    def next_bounds(self, bounds: Bounds, below: Bounds) -> Bounds:
        """Return the bounds of the next exchange.

        Args:
            bounds: bounds of this exchange.
            below: fraction of the devices whose part was within its bound.
        """

    @property
    def is_adaptive(self) -> bool:
        """True if the bounds change, so that devices must vote on them."""


@runtime_checkable
class RobustMean(Protocol):
    """A mean of updates that some devices cannot move far, whatever they send."""

    def __call__(
        self, updates: PyTree, weights: Float[Array, "devices"], idle: PyTree
    ) -> PyTree:
        """Return the robust mean of stacked updates.

        Args:
            updates: updates of all devices along a leading axis.
            weights: weights of the devices; 0 if an update does not count.
            idle: update of a device that takes no step.
        """


AnyTransform: TypeAlias = Any
"""A `Download`, `ClipRule`, `Compressor`, `Feedback`, `FixedPoint`, `RobustMean` or
noise."""
