"""Sparsification: a share of the entries of each array, the largest or random ones."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt, UInt32

from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import (
    STATIC,
    Range,
    Switch,
    check_ranges,
    register,
)
from fedbilevel.transforms.compressor import floating_leaves
from fedbilevel.transforms.random_words import random_seeds, random_words

Share: TypeAlias = Annotated[float, Range(above=0.0, at_most=1.0), STATIC]
"""A share of entries. It sets shapes, so a change compiles another program."""


class Sparse(NamedTuple):
    """Entries of an array and their positions in the flattened array."""

    values: Float[Array, "entries"]
    indices: UInt[Array, "entries"]


class RandomEntries(NamedTuple):
    """Entries of arrays at random positions, which follow from a seed.

    Attributes:
        values: tree of the arrays' entries.
        seeds: seed of each array's positions.
    """

    values: PyTree
    seeds: UInt32[Array, "arrays 2"]


@register
@dataclass(frozen=True)
class TopK:
    """Send the entries of largest magnitude of each array, with their positions.

    The error is at most that of random entries: ‖C(u) − u‖² ≤ (1 − share) ‖u‖² for
    each array u (Stich et al., 2018, lemma A.1), with equality if all magnitudes are
    equal. The code is biased, so use error feedback (`Feedback`). NaN and infinity
    count as the largest magnitudes. Positions are 16-bit integers in an array of at
    most 65,536 entries, otherwise 32-bit integers.

    Attributes:
        share: share of each array's entries, rounded up to a number of entries.

    Example:
        >>> update = jnp.array([0.1, -3.0, 0.2, 2.0])
        >>> code = TopK(0.5).encode(update, jax.random.key(0))
        >>> code
        Sparse(values=Array([-3.,  2.], dtype=float32),
               indices=Array([1, 3], dtype=uint16))
        >>> TopK(0.5).decode(code, like=update)
        Array([ 0., -3.,  0.,  2.], dtype=float32)
    """

    share: Share

    def __post_init__(self) -> None:
        check_ranges(self)

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return the largest entries of each array and their positions."""
        leaves, structure = floating_leaves("TopK", update)
        return jax.tree.unflatten(structure, map(self._choose, leaves))

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return the entries, and zeros at all other positions."""
        code = jax.tree.map(jnp.asarray, code)
        return jax.tree.map(
            lambda leaf, part: _scatter(part.values, part.indices, leaf), like, code
        )

    def _choose(self, leaf: Array) -> Sparse:
        flat = leaf.reshape(-1)
        magnitudes = jnp.abs(flat.astype(np.promote_types(leaf.dtype, np.float32)))
        # Whether a sort puts NaN first or last depends on the backend.
        magnitudes = jnp.where(jnp.isnan(magnitudes), jnp.inf, magnitudes)
        _, indices = jax.lax.top_k(magnitudes, number_of_entries(self.share, leaf.size))
        return Sparse(flat[indices], indices.astype(index_dtype(leaf.size)))


@register
@dataclass(frozen=True)
class RandomK:
    """Send random entries of each array, with a seed in place of their positions.

    The array is a ring, divided from a random entry on into as many cells of nearly
    equal length as entries are sent, and one entry of each cell is drawn uniformly. So
    positions are distinct, take as many operations as there are entries in the code,
    and each entry of the array is sent with probability p = entries sent / size: an
    entry is in a cell of length s with the share s p / size of all such rings, and then
    drawn with probability 1 / s. Probabilities are exact up to size · 2⁻³².

    The expectation of ‖C(u) − u‖² is (1 / p − 1) ‖u‖² if unbiased, else (1 − p) ‖u‖².
    If an array is not finite, all of its entries in the code are NaN, since the server
    would not see the others.

    Attributes:
        share: share of each array's entries, rounded up to a number of entries.
        unbiased: divide entries by p, so that the mean is the update. Use False with
            error feedback, which diverges with a code of larger error than the update.

    Example:
        >>> from fedbilevel.mathematics import tree
        >>> update = jnp.ones(10_000)
        >>> random = RandomK(0.01)
        >>> code = random.encode(update, jax.random.key(0))
        >>> tree.number_of_bytes(code)  # 100 values and a seed
        408
        >>> decoded = random.decode(code, like=update)
        >>> int(jnp.sum(decoded != 0)), float(jnp.max(decoded))
        (100, 100.0)
    """

    share: Share
    unbiased: Switch = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return random entries of each array and the seeds of their positions."""
        leaves, structure = floating_leaves("RandomK", update)
        seeds = random_seeds(key, len(leaves))
        values = [self._choose(leaf, seeds[i]) for i, leaf in enumerate(leaves)]
        return RandomEntries(jax.tree.unflatten(structure, values), seeds)

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return the entries, and zeros at all other positions."""
        code = jax.tree.map(jnp.asarray, code)
        leaves, structure = jax.tree.flatten(like)
        parts = jax.tree.leaves(code.values)
        arrays = [
            _scatter(part, random_positions(seed, len(part), leaf.size), leaf)
            for part, leaf, seed in zip(parts, leaves, code.seeds, strict=True)
        ]
        return jax.tree.unflatten(structure, arrays)

    def _choose(self, leaf: Array, seed: UInt32[Array, "2"]) -> Array:
        count = number_of_entries(self.share, leaf.size)
        values = leaf.reshape(-1)[random_positions(seed, count, leaf.size)]
        if self.unbiased:
            # 1 / p may exceed the range of half precision where its product does not.
            wide = values.astype(np.promote_types(leaf.dtype, np.float32))
            values = (wide * (leaf.size / max(1, count))).astype(leaf.dtype)
        return jnp.where(jnp.all(jnp.isfinite(leaf)), values, jnp.nan)


def number_of_entries(share: float, size: int) -> int:
    """Return the number of entries that are sent of an array: at least 1 of any.

    Example:
        >>> number_of_entries(0.07, 100), number_of_entries(0.01, 5)
        (7, 1)
    """
    # 0.07 * 100 is above 7 in floating point.
    return min(size, max(1, math.ceil(round(share * size, 6))))


def index_dtype(size: int) -> np.dtype:
    """Return the unsigned dtype of positions in an array.

    Example:
        >>> index_dtype(65_536), index_dtype(65_537)
        (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.uint16 if size <= 2**16 else np.uint32)


def random_positions(
    seed: UInt32[Array, "2"], count: int, size: int
) -> UInt32[Array, "positions"]:
    """Return distinct random positions, one in each cell of a ring; see `RandomK`.

    Args:
        seed: seed that a device sends.
        count: number of positions.
        size: number of entries of the array, at least `count`.

    Example:
        >>> seed = jnp.array([1, 2], jnp.uint32)
        >>> sorted(random_positions(seed, count=4, size=4).tolist())
        [0, 1, 2, 3]
    """
    if count == 0:
        return jnp.zeros(0, jnp.uint32)
    words = random_words(seed, count + 1)
    # The first cells have one entry more than the others.
    length, longer = divmod(size, count)
    cells = jnp.arange(count, dtype=jnp.uint32)
    first = cells * jnp.uint32(length) + jnp.minimum(cells, jnp.uint32(longer))
    lengths = jnp.where(cells < longer, jnp.uint32(length + 1), jnp.uint32(length))
    origin = words[-1] % jnp.uint32(size)
    positions = first + words[:-1] % lengths
    # Their sum could exceed 32 bits in an array of more than 2³¹ entries.
    rest = jnp.uint32(size) - origin
    return jnp.where(positions < rest, positions + origin, positions - rest)


def _scatter(values: Array, indices: Array, like: Any) -> Array:
    # Positions outside the array, which only a wrong code has, are dropped.
    zeros = jnp.zeros(like.size, like.dtype)
    return zeros.at[indices].set(values, mode="drop").reshape(like.shape)
