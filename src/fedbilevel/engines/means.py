"""Refusal of a loss that is not the mean over the examples of its batch.

Algorithms draw batches of any size, and a full-data loss is the mean of the losses of
single examples. For a variance or a maximum over a batch, both would be of another
problem than the one meant.
"""

from functools import partial
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Loss, Lower, Upper

MOST_ROWS = 8
"""Examples that a loss is tried on."""
DISTANCE = 0.1
"""Size of the random numbers added to x and y for a second try: at the start a loss may
agree with a mean by accident, as a variance does while all predictions are zero."""


def check_means(problem: BilevelProblem, x: Upper, y: Lower, data: StoredData) -> None:
    """Refuse losses that are no means over examples, tried on one device's data.

    Nothing is tried while a run is traced, or where a loss is not finite.

    Raises:
        ValueError: if a loss of several examples differs from the mean of its values on
            each of them.

    Example:
        >>> from fedbilevel import BilevelProblem
        >>> mean = lambda x, y, batch: jnp.mean((y - batch) ** 2)
        >>> variance = lambda x, y, batch: jnp.var(y * batch)
        >>> rows = StoredExamples(jnp.arange(3.0), jnp.array(0), jnp.array(3))
        >>> data, one = StoredData(rows, rows), jnp.array(1.0)
        >>> check_means(BilevelProblem(mean, mean), one, one, data)
        >>> check_means(BilevelProblem(variance, mean), one, one, data)
        Traceback (most recent call last):
        ...
        ValueError: upper_loss is no mean over the examples of its batch: of 3 examples
        it is 0.666667, but the mean of its values on each of them is 0. Return the mean
        over the batch, not a sum; for a variance, the mean of (value − c)² with the
        centre c a part of y; for a worst group, give each group a device, or a weight
        in x.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((x, y, data))):
        return
    for name, loss, examples in (
        ("upper_loss", problem.upper_loss, data.upper),
        ("lower_loss", problem.lower_loss, data.lower),
    ):
        require_mean(name, loss, x, y, _rows(examples))


def require_mean(name: str, loss: Loss, x: Upper, y: Lower, rows: Batch) -> None:
    """Refuse a loss that is not the mean over the examples of its batch.

    Args:
        name: of the loss, for the message.
        loss: to be tried.
        x: the point; a random one near it is tried too.
        y: the point.
        rows: the examples to try, along a leading axis.

    Raises:
        ValueError: if it is not.

    Example:
        >>> total = lambda x, y, batch: jnp.sum(batch)
        >>> require_mean("lower_loss", total, 0.0, 0.0, jnp.array([1.0, 2.0]))
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: lower_loss is no mean over the examples of its batch: of 2 examples
        it is 3, but the mean of its values on each of them is 1.5. Return the mean ...
    """
    count = len(jax.tree.leaves(rows)[0])
    for point in ((x, y), _near((x, y))):
        try:
            whole, single = _values(loss, *point, rows)
        except Exception:
            return  # it takes no single example, so that nothing can be compared
        if isinstance(whole, jax.core.Tracer):
            return  # the loss closes over a value that JAX is tracing
        together, apart = float(whole), np.asarray(single, float)
        if not (np.isfinite(together) and np.isfinite(apart).all()):
            continue
        size = max(abs(together), float(np.abs(apart).max()))
        mean = float(apart.mean())
        if abs(together - mean) > _tolerance((*point, rows, whole)) * size:
            raise ValueError(
                f"{name} is no mean over the examples of its batch: of {count} "
                f"examples it is {together:.6g}, but the mean of its values on each of "
                f"them is {mean:.6g}. Return the mean over the batch, not a sum; for a "
                "variance, the mean of (value − c)² with the centre c a part of y; for "
                "a worst group, give each group a device, or a weight in x."
            )


@partial(jax.jit, static_argnums=0)
def _values(
    loss: Loss, x: Upper, y: Lower, rows: Batch
) -> tuple[Float[Array, ""], Float[Array, "rows"]]:
    def one(row: Batch) -> Float[Array, ""]:
        return loss(x, y, jax.tree.map(lambda leaf: leaf[None], row))

    return loss(x, y, rows), jax.vmap(one)(rows)


def _rows(examples: StoredExamples) -> Batch:
    """Return a few examples of a device, spread over all that it holds."""
    size = int(examples.size)
    places = np.linspace(0, size - 1, min(size, MOST_ROWS)).astype(int)
    # The only example twice: a sum is found out even so.
    rows = int(examples.offset) + (places if size > 1 else np.zeros(2, int))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], examples.arrays)


def _near(variables: PyTree) -> PyTree:
    generator = np.random.default_rng(0)

    def moved(leaf: ArrayLike) -> Array:
        noise = DISTANCE * generator.normal(size=jnp.shape(leaf))
        return jnp.asarray(leaf) + jnp.asarray(noise, jnp.result_type(leaf))

    return jax.tree.map(moved, variables)


def _tolerance(arrays: PyTree) -> float:
    """Return the square root of the coarsest precision: terms may cancel in a loss."""
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(arrays)}
    return max(
        sqrt(float(jnp.finfo(kind).eps))  # type: ignore[no-untyped-call]
        for kind in kinds
        if jnp.issubdtype(kind, jnp.floating)
    )
