"""Quantisation: each number as a small integer times the scale of its block."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, Int16, PyTree, UInt8, UInt32

from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import (
    STATIC,
    Count,
    Range,
    SettingError,
    check_ranges,
    register,
)
from fedbilevel.transforms.compressor import floating_leaves
from fedbilevel.transforms.random_words import random_seeds, random_shorts

Bits: TypeAlias = Annotated[int, Range(at_least=2.0, at_most=16.0, whole=True), STATIC]
"""A number of bits; a change compiles another program."""
BITS = 16, 8, 4, 2
"""Numbers of bits that `Quantise` supports."""


class Quantised(NamedTuple):
    """An array as integers.

    Attributes:
        levels: a level of 16 or 8 bits per entry, or 2 or 4 smaller levels per byte.
        largest: largest magnitude of each block, in the array's dtype.
    """

    levels: Int16[Array, "entries"] | Int8[Array, "entries"] | UInt8[Array, "bytes"]
    largest: Float[Array, "blocks"]


@register
@dataclass(frozen=True)
class Quantise:
    """Quantise each number by unbiased stochastic rounding.

    An array is flattened and divided into blocks. The unit of a block is its largest
    magnitude divided by the largest level: 32,767 with 16 bits, 127 with 8 bits, 7 with
    4 bits, 1 with 2 bits. A number between two multiples of the unit becomes one of
    them, with probabilities that keep its mean (QSGD: Alistarh et al., 2017, section
    3.1, with the largest magnitude in place of the norm). So an error is at most a unit
    and its variance at most unit² / 4.

    Probabilities are multiples of 2⁻¹⁶, so a mean is exact up to 2⁻¹⁷ of a unit and the
    rounding of a block's largest magnitude in the array's dtype. The scale that is sent
    is the largest magnitude itself, which its dtype represents exactly, so that no
    level overflows. A block with NaN or infinity has no finite entry after decoding. A
    block whose magnitudes are all below 128 times the smallest normal number (1.5e-36
    in single precision; 256 times that with 16 bits) decodes to zeros, since processors
    may round its unit to 0.

    Attributes:
        bits: bits per number: 16, 8, 4 or 2.
        block: largest number of entries that share a scale.

    Example:
        >>> from fedbilevel.mathematics import tree
        >>> update = jnp.linspace(-1.0, 1.0, 10_000)
        >>> quantise = Quantise(bits=4)
        >>> code = quantise.encode(update, jax.random.key(0))
        >>> tree.number_of_bytes(code)  # 5,000 bytes of levels and 40 scales
        5160
        >>> error = quantise.decode(code, like=update) - update
        >>> bool(jnp.max(jnp.abs(error)) <= 1 / 7)
        True
    """

    bits: Bits = 8
    block: Count = 256

    sends_integers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.bits not in BITS:
            raise SettingError(
                "bits",
                f"give 16, 8, 4 or 2, not {self.bits}.",
                f"Quantise: bits is {self.bits}, expected 16, 8, 4 or 2.",
            )

    @property
    def largest_level(self) -> int:
        """The level of a block's largest magnitude.

        Example:
            >>> Quantise(bits=4).largest_level
            7
        """
        # The lowest of the 2^bits levels is unused, so that levels are symmetric.
        return int(2 ** (self.bits - 1)) - 1

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return levels and scales of each array."""
        leaves, structure = floating_leaves("Quantise", update)
        seeds = random_seeds(key, len(leaves))
        code = [self._quantise(leaf, seeds[i]) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, code)

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return levels times units, in the dtypes of `like`."""
        return jax.tree.map(self._restore, like, jax.tree.map(jnp.asarray, code))

    def _quantise(self, leaf: Array, seed: UInt32[Array, "2"]) -> Quantised:
        rows = _rows(leaf.reshape(-1), self.block)
        largest = jnp.max(jnp.abs(rows), axis=1, initial=0)
        wide = np.promote_types(leaf.dtype, np.float32)
        # Below so many smallest normal numbers, the unit would not be normal.
        least = max(128, self.largest_level + 1) * float(np.finfo(wide).tiny)
        is_normal = largest.astype(wide) > least
        divisor = jnp.where(is_normal, largest, jnp.ones_like(largest)).astype(wide)
        # 4 / divisor is a normal number even for the largest number of all.
        parts = rows.astype(wide) * (4 / divisor)[:, None] * (self.largest_level / 4)
        shorts = random_shorts(seed, rows.size).reshape(rows.shape)
        dither = (shorts.astype(wide) + 0.5) * 2.0**-16
        end = self.largest_level
        # A part may exceed the largest level by its rounding.
        levels = jnp.clip(jnp.floor(parts + dither), -end, end).astype(self._dtype)
        return Quantised(self._pack(levels.reshape(-1)[: leaf.size]), largest)

    def _restore(self, like: Any, code: Quantised) -> Array:
        wide = np.promote_types(like.dtype, np.float32)
        levels = _rows(self._unpack(code.levels, like.size), self.block)
        parts = levels.astype(wide) / self.largest_level
        rows = parts * code.largest.astype(wide)[:, None]
        flat: Array = rows.reshape(-1)[: like.size]
        return flat.reshape(like.shape).astype(like.dtype)

    @property
    def _dtype(self) -> Any:
        return jnp.int16 if self.bits == 16 else jnp.int8

    def _pack(self, levels: Array) -> Array:
        """Return levels, or bytes whose parts are levels of as many sections."""
        if self.bits >= 8:
            return levels
        sections = 8 // self.bits
        length = -(-levels.size // sections)
        shifted = (levels + jnp.int8(self.largest_level)).astype(jnp.uint8)
        packed: Array = shifted[:length]
        for number in range(1, sections):
            part = shifted[number * length : (number + 1) * length]
            part = jnp.pad(part, (0, length - part.size))
            packed = packed | part << jnp.uint8(number * self.bits)
        return packed

    def _unpack(self, packed: Array, size: int) -> Array:
        if self.bits >= 8:
            return packed
        mask = jnp.uint8(2**self.bits - 1)
        shifts = range(0, 8, self.bits)
        parts = [packed >> jnp.uint8(shift) & mask for shift in shifts]
        shifted = jnp.concatenate(parts)[:size].astype(jnp.int8)
        levels: Array = shifted - jnp.int8(self.largest_level)
        return levels


def _rows(flat: Array, block: int) -> Array:
    """Return blocks as rows; the last one is filled up with zeros."""
    # An array shorter than a block is one row, without filling.
    width = max(1, min(block, flat.size))
    rows: Array = jnp.pad(flat, (0, -flat.size % width)).reshape(-1, width)
    return rows
