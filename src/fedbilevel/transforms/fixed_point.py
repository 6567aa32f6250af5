"""Fixed-point numbers: clipped updates as integers, so that sums are exact."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, PyTree, UInt32

from fedbilevel.algorithms.protocol import Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import STATIC, Range, check_ranges, register
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.transforms.noise import DeviceNoise
from fedbilevel.transforms.random_words import random_seeds, random_shorts
from fedbilevel.transforms.stages import (
    Exchange,
    Piece,
    Stage,
    Work,
    map_pieces,
)

Bits: TypeAlias = Annotated[int, Range(at_least=2.0, at_most=16.0, whole=True), STATIC]
"""A number of bits; a change compiles another program."""
NOT_FINITE = np.int32(-(2**31))
"""Level of an update that is not finite. Engines exclude an upload that has it."""
DEVIATIONS = 6.0
"""Standard deviations of a device's noise that levels can represent. One number in
500 million is beyond and is clipped, which is post-processing of the noised number."""


@register
@dataclass(frozen=True)
class FixedPoint:
    """Round each number of a clipped update to an integer of a few bits.

    The sum of integers is the integer of the sum, on every engine and in any order. So
    a federation with secure sums computes the numbers of a simulation, although its
    server learns only the sum.

    A part of an update of norm at most C has numbers of magnitude at most C. Its unit
    is C divided by the largest level, 2^(bits - 1) - 1. A number between two multiples
    of the unit becomes one of them, with probabilities that keep its mean, so that its
    variance is at most unit² / 4. Probabilities are multiples of 2⁻¹⁶.

    The devices' weights become multiples of 2⁻¹⁵. Sums are below 2³¹, since levels
    have at most 16 bits, so that they cannot wrap. Values that algorithms report about
    devices are not sent.

    Attributes:
        bits: bits of a level, with its sign. Each number takes 32 bits in the upload.

    References:
        Bonawitz, Salehi, Konečný, McMahan and Gruteser, Federated Learning with
        Autotuned Communication-Efficient Secure Aggregation, arXiv 1912.00131,
        section 3.

    Example:
        >>> fixed = FixedPoint(bits=8)
        >>> levels = fixed.levels(jnp.array([-1.0, 0.5]), 1.0, jax.random.key(0))
        >>> int(levels[0]), int(levels[1]) in (63, 64)
        (-127, True)
        >>> fixed.values(levels, 1, 1.0)[0]
        Array(-1., dtype=float32)
    """

    bits: Bits = 16

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def largest_level(self) -> int:
        """The level of the largest number.

        Example:
            >>> FixedPoint(bits=8).largest_level
            127
        """
        return int(2 ** (self.bits - 1)) - 1

    def levels(self, part: PyTree, reach: Scalar, key: RandomKey) -> PyTree:
        """Return the levels of a tree.

        Args:
            part: tree of floating-point arrays.
            reach: largest magnitude; larger numbers get the level of this one.
            key: random key.
        """
        leaves, structure = jax.tree.flatten(part)
        seeds = random_seeds(key, max(1, len(leaves)))
        levels = [
            self._round(leaf, reach, seeds[number])
            for number, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(structure, levels)

    def values(self, total: PyTree, count: Any, reach: Scalar) -> PyTree:
        """Return the mean behind a sum of levels.

        Args:
            total: sum of the levels, each times the whole share of its device.
            count: sum of these shares.
            reach: largest magnitude of a number.
        """

        def mean(leaf: Array) -> Array:
            wide = jnp.asarray(leaf, float) / jnp.asarray(count, float)
            scaled: Array = wide * (jnp.asarray(reach, float) / self.largest_level)
            return scaled

        return jax.tree.map(mean, total)

    def limit(self, levels: PyTree) -> PyTree:
        """Return levels within the range, as a device must send them.

        Example:
            >>> FixedPoint(bits=8).limit(jnp.array([500, -3], jnp.int32)).tolist()
            [127, -3]
        """
        end = self.largest_level
        return jax.tree.map(
            lambda leaf: jnp.where(
                leaf == NOT_FINITE, leaf, jnp.clip(leaf, -end, end)
            ).astype(jnp.int32),
            levels,
        )

    def _round(
        self, leaf: Array, reach: Scalar, seed: UInt32[Array, "2"]
    ) -> Int32[Array, "..."]:
        end = self.largest_level
        wide = leaf.astype(np.promote_types(leaf.dtype, np.float32))
        inner = jnp.asarray(reach, wide.dtype)
        parts = jnp.clip(wide / inner, -1, 1) * end
        low = jnp.floor(parts)
        shorts = random_shorts(seed, leaf.size).reshape(leaf.shape)
        dither = (shorts.astype(wide.dtype) + 0.5) * 2.0**-16
        # `parts - low` is exact, whereas `parts + dither` would round the dither.
        rounded = low + (dither < parts - low).astype(low.dtype)
        return jnp.clip(rounded, -end, end).astype(jnp.int32)


def fixed_point(fixed: FixedPoint, noise: DeviceNoise | None) -> Stage:
    """Return the stage that sends levels, of which the server reads the sum.

    Args:
        fixed: numbers of the levels.
        noise: noise of devices, which levels represent as well.
    """

    def reach(piece: Piece) -> Any:
        if noise is None:
            return piece.largest
        deviation = noise.part_of_one * piece.norm / jnp.sqrt(piece.share)
        return piece.largest + DEVIATIONS * deviation

    def send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
        key = jax.random.fold_in(key, 0)
        parts = 0 if exchange.bounds is None else len(exchange.bounds)
        keys = iter(jax.random.split(key, parts + 2))

        def levels(piece: Piece, value: PyTree) -> PyTree:
            return fixed.levels(value, reach(piece), next(keys))

        update, beside = map_pieces(levels, exchange, work.upload)
        sent = Upload(update, beside._replace(ones=jnp.ones((), jnp.int32)))
        return work._replace(upload=mark_unless_finite(sent, work.upload))

    def receive(upload: Upload, exchange: Exchange) -> Upload:
        # Devices limit their own levels; one that does not must not matter more.
        limited: Upload = fixed.limit(upload)
        ones = jnp.minimum(upload.beside.ones, 1)
        return limited._replace(beside=limited.beside._replace(ones=ones))

    def release(total: Upload, exchange: Exchange) -> Upload:
        def values(piece: Piece, levels: PyTree) -> PyTree:
            return fixed.values(levels, total.beside.ones, reach(piece))

        mean = map_pieces(values, exchange, total)
        return mean._replace(beside=mean.beside._replace(ones=()))

    return Stage(send, receive, release)


def mark_unless_finite(levels: PyTree, numbers: PyTree) -> PyTree:
    """Return levels, all `NOT_FINITE` if one of the numbers behind them is not finite.

    Example:
        >>> levels = mark_unless_finite(jnp.int32(3), jnp.array(jnp.nan))
        >>> bool(levels == NOT_FINITE)
        True
    """
    checks = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(numbers)]
    finite = jnp.stack([jnp.asarray(True), *checks]).all()
    return jax.tree.map(
        lambda leaf: jnp.where(finite, leaf, jnp.asarray(NOT_FINITE)), levels
    )
