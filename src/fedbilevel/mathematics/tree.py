"""Arithmetic on pytrees, written with operators where possible.

Operators work with every type of leaf that `jax.tree.map` supports, whatever its array
library.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

Scalar: TypeAlias = float | np.floating | Float[Array, ""]
"""A step length or weight: a Python number, or a scalar array if traced."""


def add_scaled(tree: PyTree, factor: Scalar, other: PyTree) -> PyTree:
    """Return `tree + factor * other`, each leaf in its own dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> add_scaled({"a": jnp.ones(2)}, -0.5, {"a": jnp.full(2, 4.0)})
        {'a': Array([-1., -1.], dtype=float32)}
    """
    return jax.tree.map(lambda a, b: a + _like(factor, b) * b, tree, other)


def scale(factor: Scalar, tree: PyTree) -> PyTree:
    """Return `factor * tree`, each leaf in its own dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> scale(2.0, (jnp.ones(2),))
        (Array([2., 2.], dtype=float32),)
    """
    return jax.tree.map(lambda a: _like(factor, a) * a, tree)


def zeros_like(tree: PyTree) -> PyTree:
    """Return NumPy zeros of the same shapes and dtypes.

    Example:
        >>> zeros_like({"a": jnp.ones(2)})
        {'a': array([0., 0.], dtype=float32)}
    """
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tree)


def subtract(tree: PyTree, other: PyTree) -> PyTree:
    """Return `tree - other`.

    Example:
        >>> import jax.numpy as jnp
        >>> subtract([jnp.ones(2)], [jnp.ones(2)])
        [Array([0., 0.], dtype=float32)]
    """
    return jax.tree.map(lambda a, b: a - b, tree, other)


def keep_fixed(rate: Scalar, old: PyTree, new: PyTree) -> PyTree:
    """Return `new`, or exactly `old` if the rate of the step is 0.

    A mean of equal numbers may differ from them in the last bit, so a fixed variable
    would drift.

    Example:
        >>> import jax.numpy as jnp
        >>> old, mean = jnp.array([1.0]), jnp.array([1.0000001])
        >>> keep_fixed(0.0, old, mean), keep_fixed(0.1, old, mean)
        (Array([1.], dtype=float32), Array([1.0000001], dtype=float32))
    """

    def choose(a: Array, b: Array) -> Array:
        # A mean has at least single precision, so `old` in its dtype loses nothing.
        return jnp.where(rate == 0, jnp.asarray(a, jnp.result_type(b)), b)

    return jax.tree.map(choose, old, new)


def form(leaf: Any) -> str:
    """Return the dtype and shape of an array or a number.

    Example:
        >>> form(np.zeros((2, 3)))
        'float64[2, 3]'
    """
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return f"{dtype}{list(np.shape(leaf))}"


def forms(tree: PyTree) -> str:
    """Return the dtypes and shapes of all leaves.

    Example:
        >>> forms({"a": np.zeros(2)})
        '{a: float64[2]}'
    """
    return str(jax.tree.map(form, tree)).replace("'", "")


def squared_norm(tree: PyTree) -> Float[Array, ""]:
    """Return the sum of the squares of all entries.

    Example:
        >>> import jax.numpy as jnp
        >>> float(squared_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0])}))
        25.0
    """
    squares = [jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.sum(jnp.stack(squares))


def inner(tree: PyTree, other: PyTree) -> Float[Array, ""]:
    """Return the sum of the products of all entries.

    Example:
        >>> import jax.numpy as jnp
        >>> float(inner({"a": jnp.array([3.0])}, {"a": jnp.array([4.0])}))
        12.0
    """
    products = jax.tree.leaves(jax.tree.map(jnp.vdot, tree, other))
    return jnp.sum(jnp.stack(products))


def number_of_bytes(tree: PyTree) -> int:
    """Return the size in bytes of all leaves: arrays or `jax.ShapeDtypeStruct`s.

    Example:
        >>> import jax.numpy as jnp
        >>> number_of_bytes({"a": jnp.ones(3), "b": jnp.ones((2, 2))})
        28
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _like(factor: Scalar, leaf: Array) -> Scalar:
    # A strongly typed factor would promote a leaf of lower precision.
    if isinstance(factor, jax.Array | np.generic):
        return factor.astype(leaf.dtype)
    return factor
