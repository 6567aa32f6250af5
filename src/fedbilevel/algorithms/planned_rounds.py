"""Algorithms whose settings depend on the number of rounds of their run."""

from typing import Any, Protocol, runtime_checkable

from fedbilevel.algorithms.wrapper import layers


@runtime_checkable
class PlannedRounds(Protocol):
    """An algorithm that decays its learning rates over a planned number of rounds.

    The property is optional. A run of another length than planned warns.
    """

    @property
    def planned_rounds(self) -> int:
        """The number of rounds over which learning rates decay."""


def planner_of(algorithm: Any) -> PlannedRounds | None:
    """Return the algorithm, or the one inside it, that plans its rounds; None if none.

    Example:
        >>> from fedbilevel import AutoFedBiO, Clip, FedBiO, with_transforms
        >>> planner = planner_of(with_transforms(AutoFedBiO(rounds=300), Clip(1.0)))
        >>> planner.planned_rounds
        300
        >>> planner_of(FedBiO(0.1)) is None
        True
    """
    for layer in layers(algorithm):
        if isinstance(layer, PlannedRounds):
            return layer
    return None
