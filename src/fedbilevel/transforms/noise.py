"""Noise for differential privacy by device."""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import (
    STATIC,
    Count,
    Range,
    Rate,
    check_ranges,
    register,
)
from fedbilevel.mathematics.tree import Scalar

VOTES = 0.02
"""Share of the privacy of an exchange that is spent on the votes of `AdaptiveClip`."""
BESIDE = 0.08
"""Share that is spent on the values that an algorithm sends beside its update."""

Delta = Annotated[float, Range(above=0.0, below=1.0), STATIC]
"""The δ of (ε, δ): well below 1 / number of devices."""
Epsilon = Annotated[float, Range(above=0.0), STATIC]
"""An ε of (ε, δ)."""


@register
@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise that the server adds to the sum of the clipped updates.

    The server sees the clipped updates: it is trusted. What it publishes, x and y of
    all rounds, is (ε, δ)-differentially private by device. Without `devices`, the
    standard deviation of the noise on the mean is multiplier · C · w, where C is the
    bound of a part and w the largest share of a device.

    Attributes:
        multiplier: standard deviation of the noise on the sum over the largest norm of
            one device's part in it, for an exchange as a whole. `fedbilevel plan`
            gives the multiplier for an ε.
        delta: δ.
        epsilon: budget; a run stops before its ε exceeds it. None for no budget.

    References:
        McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent
        Language Models, arXiv 1710.06963.

    Example:
        >>> GaussianNoise(multiplier=1.0, epsilon=4.0).delta
        1e-05
    """

    multiplier: Rate
    delta: Delta = 1e-5
    epsilon: Epsilon | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


@register
@dataclass(frozen=True)
class DeviceNoise:
    """Gaussian noise that each device adds to its clipped update.

    The noise of `devices` devices together is that of `GaussianNoise`: use it where the
    server sees only sums, as under secure aggregation. All devices have equal weights.

    Attributes:
        multiplier: as for `GaussianNoise`, of the sum of `devices` updates.
        devices: smallest number of updates in a sum. An exchange with fewer has less
            noise than is accounted for, so it must not take place: set the quorum of a
            federation to this number.
        delta: δ.
        epsilon: budget; a run stops before its ε exceeds it. None for no budget.

    References:
        Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for
        Federated Learning with Secure Aggregation, arXiv 2102.06387.

    Example:
        >>> float(DeviceNoise(multiplier=2.0, devices=4).part_of_one)
        1.0
    """

    multiplier: Rate
    devices: Count
    delta: Delta = 1e-5
    epsilon: Epsilon | None = None

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def part_of_one(self) -> Scalar:
        """The noise of one device in units of the largest norm of a part.

        The sum over n devices has √n times this standard deviation.
        """
        part: Scalar = self.multiplier * float(self.devices) ** -0.5
        return part


Noise = GaussianNoise | DeviceNoise
"""Noise of the server or of the devices."""


def standard_normals(like: PyTree, key: RandomKey) -> PyTree:
    """Return independent standard normal numbers in the form of a tree.

    Example:
        >>> numbers = standard_normals({"a": jnp.zeros(3)}, jax.random.key(0))
        >>> numbers["a"].shape
        (3,)
    """
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, max(1, len(leaves)))
    numbers = [
        jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(structure, numbers)


def add_normals(value: PyTree, deviation: Any, key: RandomKey) -> PyTree:
    """Return a tree with independent normal numbers added to all entries.

    Example:
        >>> shifted = add_normals((jnp.zeros(2),), 0.0, jax.random.key(0))
        >>> shifted[0].tolist()
        [0.0, 0.0]
    """
    return jax.tree.map(
        lambda leaf, number: leaf + jnp.asarray(deviation, leaf.dtype) * number,
        value,
        standard_normals(value, key),
    )
