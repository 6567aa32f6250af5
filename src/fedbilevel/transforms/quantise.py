"""Quantisation."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, PyTree

from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import register


class Quantised(NamedTuple):
    """An array as integers from −127 to 127 and the size of their unit."""

    levels: Int8[Array, "*shape"]
    unit: Float[Array, ""]


@register
@dataclass(frozen=True)
class Quantise:
    """Quantise each number to 8 bits by unbiased stochastic rounding.

    The unit of an array is its largest entry divided by 127.

    Example:
        >>> update = (jnp.array([1.0, -0.5]),)
        >>> (sent,) = Quantise().encode(update, jax.random.key(0))
        >>> sent.levels.dtype, Quantise().decode((sent,), update)[0].round(2).tolist()
        (dtype('int8'), [1.0, -0.5])
    """

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return levels and units."""
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(key, max(1, len(leaves)))

        def quantise(leaf: Array, key: RandomKey) -> Quantised:
            unit = jnp.max(jnp.abs(leaf), initial=0) / 127
            # This avoids 0 / 0 for an array of zeros.
            parts = leaf / jnp.where(unit > 0, unit, 1)
            shift = jax.random.uniform(key, leaf.shape, leaf.dtype)
            levels = jnp.clip(jnp.floor(parts + shift), -127, 127)
            return Quantised(levels.astype(jnp.int8), unit)

        code = [quantise(*pair) for pair in zip(leaves, keys, strict=False)]
        return jax.tree.unflatten(structure, code)

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return levels times units."""
        return jax.tree.map(
            lambda leaf: leaf.levels.astype(leaf.unit.dtype) * leaf.unit,
            code,
            is_leaf=lambda node: isinstance(node, Quantised),
        )
