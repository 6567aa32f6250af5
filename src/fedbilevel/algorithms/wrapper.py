"""Algorithms around other algorithms: their layers, and the phases that they change."""

from collections.abc import Callable, Iterator
from inspect import getattr_static
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase

Layer = TypeVar("Layer")
MOST_LAYERS = 100
"""The most algorithms inside each other; a property that returns its own has no end."""


@runtime_checkable
class Wrapper(Protocol):
    """An algorithm around another algorithm, such as `WithServerOptimiser`."""

    @property
    def algorithm(self) -> Any:
        """The inner algorithm."""


def layers(algorithm: Any) -> Iterator[Any]:
    """Yield an algorithm, and each algorithm inside it, from the outside inwards.

    Raises:
        ValueError: if there are more than `MOST_LAYERS`.

    Example:
        >>> from fedbilevel import FedBiO, optax_optimiser, with_server_optimiser
        >>> adam = optax_optimiser("adam", learning_rate=0.1)
        >>> wrapped = with_server_optimiser(FedBiO(0.1), adam)
        >>> [type(layer).__name__ for layer in layers(wrapped)]
        ['WithServerOptimiser', 'FedBiO']
    """
    for _ in range(MOST_LAYERS):
        yield algorithm
        if not isinstance(algorithm, Wrapper):
            return
        inner = algorithm.algorithm
        # A field `algorithm` of another meaning, such as a name, is none inside.
        if not isinstance(inner, FederatedAlgorithm):
            return
        algorithm = inner
    raise ValueError(
        f"{type(algorithm).__name__} has more than {MOST_LAYERS} algorithms inside "
        "each other. Return the inner algorithm from its property algorithm, and not "
        "the wrapper itself, or rename the property."
    )


def innermost(algorithm: Any) -> Any:
    """Return the algorithm inside all wrappers, which has the settings of the devices.

    Example:
        >>> from fedbilevel import Clip, FedBiO, optax_optimiser, with_transforms
        >>> from fedbilevel import with_server_optimiser
        >>> adam = optax_optimiser("adam", learning_rate=0.1)
        >>> wrapped = with_server_optimiser(FedBiO(0.1, batch_size=64), adam)
        >>> innermost(with_transforms(wrapped, Clip(1.0))).batch_size
        64
    """
    *_, inner = layers(algorithm)
    return inner


def find_layer(algorithm: Any, kind: type[Layer]) -> Layer | None:
    """Return an algorithm, or the outermost inside it, of a type or protocol.

    Example:
        >>> from fedbilevel import AutoFedBiO, Clip, FedBiO, with_transforms
        >>> from fedbilevel.algorithms import PlannedRounds
        >>> wrapped = with_transforms(AutoFedBiO(rounds=300), Clip(1.0))
        >>> find_layer(wrapped, PlannedRounds).planned_rounds
        300
        >>> find_layer(FedBiO(0.1), PlannedRounds) is None
        True
    """
    return next((layer for layer in layers(algorithm) if declares(layer, kind)), None)


def declares(layer: Any, kind: type[Layer]) -> TypeGuard[Layer]:
    """Return whether an algorithm is of a type, or has all members of a protocol.

    Before Python 3.12 `isinstance` reads the members of a protocol, and takes one that
    raises an AttributeError for missing.

    Example:
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.algorithms import PlannedRounds
        >>> declares(FedBiO(0.1), PlannedRounds)
        False
    """
    if not getattr(kind, "_is_protocol", False):
        return isinstance(layer, kind)
    members = [name for name in vars(kind) if not name.startswith("_")]
    missing = object()
    return all(getattr_static(layer, name, missing) is not missing for name in members)


def map_phases(
    function: Callable[[Phase], Phase], phases: tuple[Phase, ...]
) -> tuple[Phase, ...]:
    """Return the phases of a round, each changed by a function.

    A phase that a round repeats is one object, and so is its result: engines compile it
    once. Write the wrapper of an algorithm with this function.

    Example:
        >>> from fedbilevel import BilevelProblem, WarmStart
        >>> loss = lambda x, y, batch: y**2
        >>> phases = WarmStart(0.1, exchanges=2).phases(BilevelProblem(loss, loss))
        >>> first, second = map_phases(lambda phase: phase._replace(steps=7), phases)
        >>> first is second, first.steps
        (True, 7)
    """
    results: dict[int, Phase] = {}
    for phase in phases:
        if id(phase) not in results:
            results[id(phase)] = function(phase)
    return tuple(results[id(phase)] for phase in phases)
