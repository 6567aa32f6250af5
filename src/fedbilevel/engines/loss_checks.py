"""Refusal of a loss that is not finite, or not the mean over its batch's examples.

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
NOT_FINITE = (
    "Is there a division by the number of examples of a group that is absent from a "
    "batch, or a logarithm of 0? A loss must be finite on any batch, even of one "
    "example: multiply each example's loss by a fixed weight of its group, add a small "
    "number before a logarithm, or start at another x and y."
)
"""The likely cause of a loss that is not finite, and its cure."""


def check_means(problem: BilevelProblem, x: Upper, y: Lower, data: StoredData) -> None:
    """Refuse losses that are no means over examples, tried on one device's data.

    Nothing is tried while a run is traced.

    Raises:
        ValueError: if a loss is not finite at x and y, or a loss of several examples
            differs from the mean of its values on each of them.

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
        centre c a part of y; for a worst group, the mean of loss² or of exp(c · loss)
        over examples, in which large losses count more.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((x, y, data))):
        return
    for name, loss, examples in (
        ("upper_loss", problem.upper_loss, data.upper),
        ("lower_loss", problem.lower_loss, data.lower),
    ):
        require_mean(name, loss, x, y, _rows(examples))


def require_mean(name: str, loss: Loss, x: Upper, y: Lower, rows: Batch) -> None:
    """Refuse a loss that is not finite, or not the mean over its batch's examples.

    Examples and points that are not finite themselves are not judged: screening
    excludes the uploads of their devices.

    Args:
        name: of the loss, for the message.
        loss: to be tried.
        x: the point; a random one near it is tried too, where a loss may be infinite.
        y: the point.
        rows: the examples to try, along a leading axis.

    Raises:
        ValueError: if the loss is not finite at x and y, or is no mean.

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
    start = (x, y)
    for point in (start, _near(start)):
        try:
            whole, single = _values(loss, *point, rows)
        except Exception:
            return  # it takes no single example, so that nothing can be compared
        if isinstance(whole, jax.core.Tracer):
            return  # the loss closes over a value that JAX is tracing
        together, apart = float(whole), np.asarray(single, float)
        if not (np.isfinite(together) and np.isfinite(apart).all()):
            if point is start and _all_finite((start, rows)):
                raise ValueError(_not_finite(name, together, apart))
            continue
        size = max(abs(together), float(np.abs(apart).max()))
        mean = float(apart.mean())
        if abs(together - mean) > _tolerance((*point, rows, whole)) * size:
            raise ValueError(
                f"{name} is no mean over the examples of its batch: of {count} "
                f"examples it is {together:.6g}, but the mean of its values on each of "
                f"them is {mean:.6g}. Return the mean over the batch, not a sum; for a "
                "variance, the mean of (value − c)² with the centre c a part of y; for "
                "a worst group, the mean of loss² or of exp(c · loss) over examples, "
                "in which large losses count more."
                f"{_column(point[1], rows, count)}"
            )


def _not_finite(name: str, together: float, apart: Float[np.ndarray, "rows"]) -> str:
    places = []
    broken = apart[~np.isfinite(apart)]
    if len(broken):
        places.append(f"{broken[0]} on {len(broken)} of {len(apart)} single examples")
    if not np.isfinite(together):
        places.append(f"{together} on {len(apart)} examples together")
    return (
        f"{name} is not finite at the x and y given: it is {' and '.join(places)}. "
        f"{NOT_FINITE}"
    )


def _column(y: Lower, rows: Batch, count: int) -> str:
    """Return a hint where an array is a column, as labels often are by mistake."""
    shapes = [list(jnp.shape(leaf)) for leaf in jax.tree.leaves(rows)]
    if [count, 1] not in shapes:
        columns = [jnp.shape(leaf) for leaf in jax.tree.leaves(y)]
        columns = [shape for shape in columns if len(shape) == 2 and shape[1] == 1]
        if not columns:
            return ""
        return (
            f" Or y of shape {list(columns[0])} makes predictions of shape [n, 1], "
            "which beside labels of [n] broadcast to [n, n]; give y one axis."
        )
    return (
        f" The arrays of the batch have shapes {', '.join(map(str, shapes))}: an array "
        "of shape [n, 1] beside one of [n] broadcasts to [n, n]; give labels as [n]."
    )


def _all_finite(arrays: PyTree) -> bool:
    return all(
        bool(jnp.isfinite(leaf).all())
        for leaf in jax.tree.leaves(arrays)
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
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
