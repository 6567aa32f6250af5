"""Loops that JAX compiles once, and that run in Python for tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.mathematics import arrays


def repeat(function: Callable[[PyTree], PyTree], value: PyTree, times: int) -> PyTree:
    """Return a value after a number of calls of a function.

    Example:
        >>> float(repeat(lambda value: 2 * value, jnp.ones(()), times=3))
        8.0
    """
    if arrays.namespace(value) is jnp:
        return jax.lax.scan(lambda v, _: (function(v), None), value, None, times)[0]
    for _ in range(times):
        value = function(value)
    return value


def map_each(
    function: Callable[..., Any], values: Sequence[PyTree], others: Any
) -> Any:
    """Return the results of a function of pairs, along a leading axis.

    Example:
        >>> ones = [jnp.ones(()), jnp.ones(())]
        >>> map_each(lambda a, b: a + b, ones, jnp.arange(2.0)).tolist()
        [1.0, 2.0]
    """
    if arrays.namespace(values) is jnp:
        if all(value is values[0] for value in values):
            return jax.lax.map(lambda other: function(values[0], other), others)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
        return jax.lax.map(lambda pair: function(*pair), (stacked, others))
    return arrays.stack([function(*pair) for pair in zip(values, others, strict=True)])
