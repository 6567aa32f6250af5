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
    UPPER_ONLY = "devices with upper examples only"


LOCAL_HYPERGRADIENT = (
    "{name} estimates the hypergradient on each device from its own lower loss. Select "
    "an algorithm with one adjoint for all devices, such as FedBiO."
)
"""The reason and the cure of `Conflict.UPPER_ONLY`; name is that of the algorithm."""


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
class ChangesDraws(Protocol):
    """A wrapper that changes the batches which the inner algorithm draws."""

    def around(self, algorithm: Any) -> Any:
        """Return another algorithm with the batches of this one."""


def with_draws_of(algorithm: Any, other: Any) -> Any:
    """Return another algorithm with the same batches as an algorithm.

    Args:
        algorithm: algorithm, perhaps with wrappers that change its draws.
        other: algorithm without such wrappers, such as a trial of other rates.

    Example:
        >>> from fedbilevel import FedBiO, with_whole_batches
        >>> whole = with_whole_batches(FedBiO(0.1))
        >>> with_draws_of(whole, FedBiO(0.2)) == with_whole_batches(FedBiO(0.2))
        True
    """
    for layer in reversed(list(layers(algorithm))):
        if declares(layer, ChangesDraws):
            other = layer.around(other)
    return other


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
