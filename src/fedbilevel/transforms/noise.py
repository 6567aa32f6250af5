"""Noise for differential privacy by device."""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, PyTree

from fedbilevel.algorithms.protocol import Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import (
    STATIC,
    Count,
    Range,
    Scale,
    Switch,
    check_ranges,
    register,
)
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.transforms.rules import check_rules
from fedbilevel.transforms.stages import (
    Exchange,
    Piece,
    Stage,
    Work,
    map_pieces,
)

TAILS = 0x7A11
"""Number in the keys of the numbers in the tails."""
TAIL = 2.0**-15
"""Probability of one tail: 256 of the 2²³ values of `jax.random.normal`."""
HIGHEST, LOWEST = 4.0085421, -4.0090034
"""Bounds of the tails, in the middle between two of these values:
√2 erf⁻¹(1 − 1025 · 2⁻²⁴) and −√2 erf⁻¹(1 − 1023 · 2⁻²⁴)."""

Delta = Annotated[float, Range(above=0.0, below=1.0), STATIC]
"""The δ of (ε, δ): below 1 / number of devices, or of examples."""
Epsilon = Annotated[float, Range(above=0.0), STATIC]
"""An ε of (ε, δ)."""


@register
@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise that the server adds to the sum of the clipped updates.

    The server sees the clipped updates: it is trusted. What it publishes, x and y of
    all rounds, is (ε, δ)-differentially private by device. The noise on a part of the
    mean with bound C has the standard deviation multiplier · C · w / √a, where w is the
    largest share of a device and a the part's share of the privacy: 1
    for `Clip` if devices send updates only.

    Attributes:
        multiplier: standard deviation of the noise on the sum over the largest norm of
            one device's part in it, for an exchange as a whole. `fedbilevel noise`
            gives the multiplier for an ε.
        delta: δ.
        epsilon: budget; a run stops before its ε exceeds it. None for no budget.
        from_seed: True for results that anyone can repeat: the noise follows from the
            seed of the run, protects nobody, and the run reports no ε.

    References:
        McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent
        Language Models, arXiv 1710.06963.

    Example:
        >>> GaussianNoise(multiplier=1.0, epsilon=4.0).delta
        1e-05
    """

    multiplier: Scale
    delta: Delta = 1e-5
    epsilon: Epsilon | None = None
    from_seed: Switch = False

    def __post_init__(self) -> None:
        check_ranges(self)
        check_source(self)


@register
@dataclass(frozen=True)
class DeviceNoise:
    """Gaussian noise that each device adds to its clipped update.

    The noise of `devices` devices together is that of `GaussianNoise`: use it where the
    server sees only sums, as with secure sums. All devices have equal weights.

    Attributes:
        multiplier: as for `GaussianNoise`, of the sum of `devices` updates.
        devices: smallest number of updates in a sum. An exchange with fewer would have
            less noise than ε is computed for, so the run ends with an error instead.
        delta: δ.
        epsilon: budget; a run stops before its ε exceeds it. None for no budget.
        from_seed: True for results that anyone can repeat: the noise follows from the
            seed of the run, protects nobody, and the run reports no ε.

    References:
        Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for
        Federated Learning with Secure Aggregation, arXiv 2102.06387.

    Example:
        >>> float(DeviceNoise(multiplier=2.0, devices=4).part_of_one)
        1.0
    """

    multiplier: Scale
    devices: Count
    delta: Delta = 1e-5
    epsilon: Epsilon | None = None
    from_seed: Switch = False

    def __post_init__(self) -> None:
        check_ranges(self)
        check_source(self)

    @property
    def part_of_one(self) -> Scalar:
        """The noise of one device in units of the largest norm of a part.

        The sum over n devices has √n times this standard deviation.
        """
        part: Scalar = self.multiplier * float(self.devices) ** -0.5
        return part


def server_noise(noise: GaussianNoise) -> Stage:
    """Return the stage that adds noise to the mean.

    A device whose upload does not count is one whose change is zero: the divisor must
    not depend on the data. The noise on a piece of bound C has the standard deviation
    multiplier · C · w / √a, where w is the largest share of a device and a the piece's
    share of the privacy of the exchange.
    """

    def release(mean: Upload, exchange: Exchange) -> Upload:
        counted, largest = exchange.shares

        def noised(piece: Piece, value: PyTree, numbers: PyTree) -> PyTree:
            width = noise.multiplier * largest * piece.norm / jnp.sqrt(piece.share)
            return jax.tree.map(
                lambda leaf, number: (
                    jnp.asarray(counted, leaf.dtype) * leaf
                    + jnp.asarray(width, leaf.dtype) * number.astype(leaf.dtype)
                ),
                value,
                numbers,
            )

        return map_pieces(noised, exchange, mean, exchange.normals)

    return Stage(release=release)


def device_noise(noise: DeviceNoise) -> Stage:
    """Return the stage that adds a device's share of the noise.

    If fewer devices than planned added noise, the mean is not finite, so that nothing
    is published.
    """

    def send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
        def noised(piece: Piece, value: PyTree) -> PyTree:
            size = noise.part_of_one * piece.norm / jnp.sqrt(piece.share)
            return add_normals(value, size, jax.random.fold_in(key, piece.number))

        return work._replace(upload=map_pieces(noised, exchange, work.upload))

    def release(mean: Upload, exchange: Exchange) -> Upload:
        counted, largest = exchange.shares
        enough = counted > (noise.devices - 0.5) * largest
        factor = jnp.where(enough, counted, jnp.nan)
        released: Upload = jax.tree.map(
            lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, mean
        )
        return released

    return Stage(send, release=release)


def check_source(noise: Any) -> None:
    """Raise if noise from the seed has a budget.

    Raises:
        ValueError: if it has.

    Example:
        >>> GaussianNoise(1.0, epsilon=2.0, from_seed=True)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: GaussianNoise: from_seed excludes
        epsilon, since anyone who knows the seed can subtract the noise, so it has no ε.
        Remove one of them.
    """
    names = {"from_seed": noise.from_seed, "epsilon": noise.epsilon is not None}
    check_rules(
        [(name, name) for name, is_used in names.items() if is_used],
        f"{type(noise).__name__}: ",
    )


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
        normal_numbers(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(structure, numbers)


def normal_numbers(key: RandomKey, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return standard normal numbers whose tails do not end.

    In single precision `jax.random.normal` has 23 random bits: no number is above 5.23
    or below -5.42. So a sum beyond this end reveals with certainty that an example or a
    device was in it. With a multiplier of 0.9 and 100 releases, this happens with a
    larger probability than a δ of 1e-5. So numbers of the 2⁻¹⁵ outermost parts on each
    side are replaced by others, of 32 more random bits. The remaining end is at 7.8.

    Example:
        >>> numbers = normal_numbers(jax.random.key(0), (1000,), jnp.float32)
        >>> bool(jnp.all(numbers == jax.random.normal(jax.random.key(0), (1000,))))
        True
    """
    numbers = jax.random.normal(key, shape, dtype)
    if numbers.dtype != jnp.float32:
        return numbers
    words = jax.random.bits(jax.random.fold_in(key, TAILS), shape, jnp.uint32)
    rest = (words.astype(jnp.float32) + 0.5) * jnp.float32(TAIL * 2.0**-32)
    distances = -ndtri(rest)
    numbers = jnp.where(numbers > HIGHEST, distances, numbers)
    return jnp.where(numbers < LOWEST, -distances, numbers)


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
