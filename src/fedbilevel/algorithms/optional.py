"""Properties that an algorithm may have, read through all of its wrappers."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from fedbilevel.algorithms.protocol import Server
from fedbilevel.algorithms.wrapper import declares, layers
from fedbilevel.theory.scaling import ScalingLaw


@runtime_checkable
class PlannedRounds(Protocol):
    """An algorithm that decays its learning rates over a planned number of rounds.

    A run of another length than planned warns.
    """

    @property
    def planned_rounds(self) -> int:
        """The number of rounds over which learning rates decay."""


class Conflict(Enum):
    """Something that an algorithm may exclude."""

    EXAMPLE_NOISE = "noise on the derivatives of each example"
    SERVER_OPTIMISER = "an optimiser on the server"


@runtime_checkable
class Conflicting(Protocol):
    """An algorithm that excludes something, such as noise that does not protect it."""

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """The reason and the cure of each exclusion, as sentences."""


def conflict_of(algorithm: Any, conflict: Conflict) -> str | None:
    """Return why an algorithm, or one inside it, excludes something; None if none does.

    Example:
        >>> from fedbilevel import AutoFedBiO, FedBiO
        >>> conflict_of(AutoFedBiO(rounds=9), Conflict.SERVER_OPTIMISER)
        'AutoFedBiO already has a server optimiser. Select another algorithm, such as
        FedBiO.'
        >>> conflict_of(FedBiO(0.1), Conflict.SERVER_OPTIMISER) is None
        True
    """
    for layer in layers(algorithm):
        if declares(layer, Conflicting):
            conflicts = layer.conflicts
            if conflict in conflicts:
                return conflicts[conflict]
    return None


@runtime_checkable
class Scaled(Protocol):
    """An algorithm whose settings have the names and the scaling of the paper's."""

    @property
    def scaling_law(self) -> ScalingLaw:
        """The powers of ε and of the number of devices in the corollaries."""


@runtime_checkable
class MovedByServer(Protocol):
    """An algorithm whose devices compare points before and after a step on x."""

    def moved_by_server(self, state: Server) -> Server:
        """Return the initial state for runs in which a server optimiser moves x."""
