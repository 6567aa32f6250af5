"""Arithmetic on pytrees, written with operators alone.

Nothing here names an array library's function where an operator does, so the same
estimators and algorithms serve every kind of leaf that `jax.tree.map` can reach.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Rate: TypeAlias = float | Float[Array, ""]
"""A step length or weight: a Python number, or a scalar array when it is traced."""


def add_scaled(tree: PyTree, factor: Rate, other: PyTree) -> PyTree:
    """Return `tree + factor * other`, each leaf in its own dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> add_scaled({"a": jnp.ones(2)}, -0.5, {"a": jnp.full(2, 4.0)})
        {'a': Array([-1., -1.], dtype=float32)}
    """
    return jax.tree.map(lambda a, b: a + _like(factor, b) * b, tree, other)


def scale(factor: Rate, tree: PyTree) -> PyTree:
    """Return `factor * tree`, each leaf in its own dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> scale(2.0, (jnp.ones(2),))
        (Array([2., 2.], dtype=float32),)
    """
    return jax.tree.map(lambda a: _like(factor, a) * a, tree)


def subtract(tree: PyTree, other: PyTree) -> PyTree:
    """Return `tree - other`.

    Example:
        >>> import jax.numpy as jnp
        >>> subtract([jnp.ones(2)], [jnp.ones(2)])
        [Array([0., 0.], dtype=float32)]
    """
    return jax.tree.map(lambda a, b: a - b, tree, other)


def squared_norm(tree: PyTree) -> Float[Array, ""]:
    """Return the sum of the squares of all entries.

    Example:
        >>> import jax.numpy as jnp
        >>> float(squared_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0])}))
        25.0
    """
    squares = [jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.sum(jnp.stack(squares))


def number_of_bytes(tree: PyTree) -> int:
    """Return the size of all leaves, or of the arrays that shapes stand for.

    Example:
        >>> import jax.numpy as jnp
        >>> number_of_bytes({"a": jnp.ones(3), "b": jnp.ones((2, 2))})
        28
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _like(factor: Rate, leaf: Array) -> Rate:
    # A strongly typed factor would otherwise promote a leaf of lower precision.
    return factor.astype(leaf.dtype) if isinstance(factor, jax.Array) else factor
