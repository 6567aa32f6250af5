"""Arithmetic on pytrees, written with operators where possible.

Operators work with every type of leaf that `jax.tree.map` supports, whatever its array
library. All other functions are those of the leaves' library (`arrays.namespace`).
"""

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.arrays import Array, cast, is_tensor, namespace

Scalar: TypeAlias = float | np.floating | Float[Array, ""]
"""A step length or weight: a Python number, or a scalar array if traced."""


def add_scaled(tree: PyTree, factor: Scalar, other: PyTree) -> PyTree:
    """Return `tree + factor * other`, each leaf in its own dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> add_scaled({"a": jnp.ones(2)}, -0.5, {"a": jnp.full(2, 4.0)})
        {'a': Array([-1., -1.], dtype=float32)}
    """
    if isinstance(factor, float | int):
        return jax.tree.map(lambda a, b: arrays.plus(a, factor, b), tree, other)
    return jax.tree.map(lambda a, b: a + cast(factor, b) * b, tree, other)


def scale(factor: Scalar, tree: PyTree) -> PyTree:
    """Return `factor * tree`, each leaf in its own dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> scale(2.0, (jnp.ones(2),))
        (Array([2., 2.], dtype=float32),)
    """
    return jax.tree.map(lambda a: cast(factor, a) * a, tree)


def zeros_like(tree: PyTree) -> PyTree:
    """Return NumPy zeros, or tensors, of the same shapes and dtypes.

    Example:
        >>> zeros_like({"a": jnp.ones(2)})
        {'a': array([0., 0.], dtype=float32)}
    """
    return jax.tree.map(
        lambda leaf: 0 * leaf if is_tensor(leaf) else np.zeros(leaf.shape, leaf.dtype),
        tree,
    )


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
    if is_tensor(rate) or namespace(new) is not jnp:
        xp = namespace(new)
        return jax.tree.map(
            lambda a, b: xp.where(
                xp.asarray(rate == 0, device=b.device), cast(a, b), b
            ),
            old,
            new,
        )

    def choose(a: Array, b: Array) -> Array:
        # A mean has at least single precision, so `old` in its dtype loses nothing.
        return jnp.where(rate == 0, jnp.asarray(a, jnp.result_type(b)), b)

    return jax.tree.map(choose, old, new)


def at_least_single(tree: PyTree) -> PyTree:
    """Return a tree in single precision or higher.

    Example:
        >>> import jax.numpy as jnp
        >>> at_least_single({"a": jnp.ones(2, jnp.bfloat16)})
        {'a': Array([1., 1.], dtype=float32)}
    """
    return jax.tree.map(arrays.at_least_single, tree)


def zero_unless_finite(tree: PyTree) -> PyTree:
    """Return a tree, or zeros if any of its numbers is not finite.

    Example:
        >>> import jax.numpy as jnp
        >>> zero_unless_finite((jnp.ones(2), jnp.array([jnp.nan])))
        (Array([0., 0.], dtype=float32), Array([0.], dtype=float32))
    """
    finite = arrays.all_finite(tree)
    return jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), tree)


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
    return inner(tree, tree)


def inner(tree: PyTree, other: PyTree) -> Float[Array, ""]:
    """Return the sum of the products of all entries.

    Example:
        >>> import jax.numpy as jnp
        >>> float(inner({"a": jnp.array([3.0])}, {"a": jnp.array([4.0])}))
        12.0
    """
    product = jnp.vdot if namespace(tree, other) is jnp else _summed_product
    return arrays.total(
        arrays.stack(jax.tree.leaves(jax.tree.map(product, tree, other)))
    )


def number_of_bytes(tree: PyTree) -> int:
    """Return the size in bytes of all leaves: arrays or `jax.ShapeDtypeStruct`s.

    Example:
        >>> import jax.numpy as jnp
        >>> number_of_bytes({"a": jnp.ones(3), "b": jnp.ones((2, 2))})
        28
    """
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _summed_product(a: Array, b: Array) -> Array:
    return (a * b).sum()
