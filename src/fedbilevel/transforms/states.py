"""The states of algorithms with transforms."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
from jaxtyping import PyTree, UInt32

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.protocol import Private, Server
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.transforms.protocol import Bounds

Seed: TypeAlias = UInt32[jax.Array, "2"]
"""Two random words, from which the code of a download draws."""


class PrivateState(NamedTuple):
    """The private state of a device, and the errors of its codes.

    Attributes:
        inner: private state of the inner algorithm.
        memories: error of the last code in each phase, by its name.
    """

    inner: Private
    memories: Mapping[str, PyTree]


class TransformedState(NamedTuple):
    """The state of the inner algorithm and that of the transforms.

    Attributes:
        inner: state of the inner algorithm.
        bounds: bounds of an adaptive clip in each phase, by its name; or ().
        seed: seed of the next download's code; () if downloads are not coded.
    """

    inner: Server
    bounds: Mapping[str, Bounds] | tuple[()] = ()
    seed: Any = ()

    @property
    def x(self) -> Upper:
        """The upper variable."""
        return self.inner.x

    @property
    def y(self) -> Lower:
        """The lower variable."""
        return self.inner.y

    @property
    def step(self) -> Any:
        """The number of local steps so far, if the inner algorithm counts them."""
        return self.inner.step

    @property
    def notices(self) -> Mapping[str, Any]:
        """The notices of the inner state."""
        return notices_of(self.inner)
