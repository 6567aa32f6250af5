"""Arithmetic on pytrees, written with operators alone.

Nothing here names an array library's function where an operator does, so the same
estimators and algorithms serve every kind of leaf that `jax.tree.map` can reach.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

Rate: TypeAlias = float | np.floating | Float[Array, ""]
"""A step length or weight: a Python number, or a scalar array when it is traced."""


Class = TypeVar("Class", bound=type)


def register(cls: Class) -> Class:
    """Register a frozen dataclass as a pytree, its fields being the children.

    A field with `metadata={"static": True}` is part of the structure instead. Building
    the tree anew does not run `__init__`, so it may hold anything: tracers, the axes of
    a `vmap`, masks.

    Example:
        >>> import jax
        >>> from dataclasses import dataclass, field
        >>> @register
        ... @dataclass(frozen=True)
        ... class Settings:
        ...     rate: float
        ...     steps: int = field(default=1, metadata={"static": True})
        >>> jax.tree.map(lambda leaf: 2 * leaf, Settings(0.5, steps=3))
        Settings(rate=1.0, steps=3)
    """
    static = [f.name for f in fields(cls) if f.metadata.get("static")]
    dynamic = [f.name for f in fields(cls) if not f.metadata.get("static")]

    def flatten(instance: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children = [
            (jax.tree_util.GetAttrKey(name), getattr(instance, name))
            for name in dynamic
        ]
        return children, tuple(getattr(instance, name) for name in static)

    def unflatten(structure: tuple[Any, ...], children: Iterable[Any]) -> Any:
        instance: Any = object.__new__(cls)
        for name, value in zip(
            (*dynamic, *static), (*children, *structure), strict=True
        ):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def is_number(value: Any) -> bool:
    """Return whether a value is one concrete number, of whatever library.

    Example:
        >>> import jax.numpy as jnp
        >>> is_number(0.5), is_number(jnp.array(0.5)), is_number(jnp.ones(3))
        (True, True, False)
    """
    return (
        isinstance(value, float | int | np.number | np.ndarray | jax.Array)
        and not isinstance(value, jax.core.Tracer)
        and np.ndim(value) == 0
    )


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


def zeros_like(tree: PyTree) -> PyTree:
    """Return zeros of the same shapes and types; of NumPy, which any array adds to.

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


def moved(rate: Rate, old: PyTree, new: PyTree) -> PyTree:
    """Return `new`, or `old` to the bit where the rate of the step was 0.

    A mean of equal numbers may differ from them in the last bit, so a variable that no
    device has moved would drift.

    Example:
        >>> import jax.numpy as jnp
        >>> old, mean = jnp.array([1.0]), jnp.array([1.0000001])
        >>> moved(0.0, old, mean), moved(0.1, old, mean)
        (Array([1.], dtype=float32), Array([1.0000001], dtype=float32))
    """

    def choose(a: Array, b: Array) -> Array:
        # A mean has at least single precision, so `old` in its dtype loses nothing.
        return jnp.where(rate == 0, jnp.asarray(a, jnp.result_type(b)), b)

    return jax.tree.map(choose, old, new)


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
    """Return the size of all leaves, or of the arrays that shapes stand for.

    Example:
        >>> import jax.numpy as jnp
        >>> number_of_bytes({"a": jnp.ones(3), "b": jnp.ones((2, 2))})
        28
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _like(factor: Rate, leaf: Array) -> Rate:
    # A strongly typed factor would otherwise promote a leaf of lower precision.
    if isinstance(factor, jax.Array | np.generic):
        return factor.astype(leaf.dtype)
    return factor
