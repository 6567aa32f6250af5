"""Checks that a loss is finite and is the mean over the examples of its batch.

Algorithms draw batches of any size, and a full-data loss is the mean of the losses of
single examples. If a loss is a variance or a maximum over its batch, algorithms solve
another problem than the intended one.
"""

from collections.abc import Callable, Collection
from functools import partial
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from fedbilevel.data.examples import StoredData, StoredExamples, seen_by
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Loss, Lower, Upper

MOST_ROWS = 8
"""The most examples in the trial batch of a loss."""
DISTANCE = 0.1
"""Standard deviation of the noise added to x and y for a second trial: at the start a
loss may equal a mean by accident, as a variance does while all predictions are zero."""
NOT_FINITE = (
    "Likely causes are a division by the number of examples of a group that is absent "
    "from a batch, and a logarithm of 0. A loss must be finite on any batch, even of "
    "one example: multiply each example's loss by a fixed weight of its group, add a "
    "small number before a logarithm, or start at another x and y."
)
"""The likely causes of a loss that is not finite, and their remedies."""


def check_means(
    problem: BilevelProblem,
    x: Upper,
    y: Lower,
    data: StoredData,
    levels: Collection[str] = StoredData._fields,
) -> None:
    """Raise ValueError unless both losses are means over examples of a device.

    Nothing is checked while a run is traced.

    Args:
        problem: the two losses.
        x: upper variable.
        y: lower variable.
        data: data of a device.
        levels: levels to check, of which the device has examples.

    Raises:
        ValueError: if a loss is not finite at x and y, or a loss of several examples
            differs from the mean of its values on single examples.

    Example:
        >>> from fedbilevel import BilevelProblem
        >>> mean = lambda x, y, batch: jnp.mean((y - batch) ** 2)
        >>> variance = lambda x, y, batch: jnp.var(y * batch)
        >>> rows = StoredExamples(jnp.arange(3.0), jnp.array(0), jnp.array(3))
        >>> data, x = StoredData(rows, rows), jnp.array(1.0)
        >>> check_means(BilevelProblem(mean, mean), x, x, data)
        >>> check_means(BilevelProblem(variance, mean), x, x, data)
        Traceback (most recent call last):
        ...
        ValueError: upper_loss is not a mean over its batch: on 3 examples it is
        0.666667, but the mean of its values on each single example is 0. Return the
        mean over the batch, not a sum. A weighted mean divides by the number of
        examples, not by the sum of the weights. Replace a variance by the mean of
        (value − c)² with the centre c a part of y, and a worst group by the mean of
        loss² or of exp(c · loss) over examples, which weights large losses more.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((x, y, data))):
        return
    x = seen_by(data, x)
    for level in levels:
        name = f"{level}_loss"
        loss: Loss = getattr(problem, name)
        require_mean(name, loss, x, y, _rows(getattr(data, level)))


def require_mean(
    name: str,
    loss: Loss,
    x: Upper,
    y: Lower,
    rows: Batch,
    values: Callable[..., Any] | None = None,
) -> None:
    """Raise ValueError unless a loss is finite and a mean over its batch.

    Examples and points that are not finite are skipped: screening excludes the uploads
    of their devices.

    Args:
        name: name of the loss, for the message.
        loss: loss to check.
        x: upper variable. The check is repeated at a random point near (x, y), where
            the loss may be infinite.
        y: lower variable.
        rows: examples to evaluate, along a leading axis.
        values: function of the loss, x, y and rows that returns the loss of all rows
            and the losses of single rows; by default compiled by JAX.

    Raises:
        ValueError: if the loss is not finite at x and y, or is not a mean.

    Example:
        >>> total = lambda x, y, batch: jnp.sum(batch)
        >>> require_mean("lower_loss", total, 0.0, 0.0, jnp.array([1.0, 2.0]))
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: lower_loss is not a mean over its batch: on 2 examples it is 3, but
        the mean of its values on each single example is 1.5. Return the mean ...
    """
    count = len(jax.tree.leaves(rows)[0])
    start = (x, y)
    for point in (start, _near(start)):
        try:
            whole, single = (values or _values)(loss, *point, rows)
        except Exception:
            return  # The loss accepts no single example, so there is no mean.
        if isinstance(whole, jax.core.Tracer):
            return  # The loss closes over a value that JAX is tracing.
        together, apart = float(whole), np.asarray(single, float)
        if not (np.isfinite(together) and np.isfinite(apart).all()):
            if point is start and _all_finite((start, rows)):
                raise ValueError(_not_finite(name, together, apart))
            continue
        size = max(abs(together), float(np.abs(apart).max()))
        mean = float(apart.mean())
        if abs(together - mean) > _tolerance((*point, rows, whole)) * size:
            raise ValueError(
                f"{name} is not a mean over its batch: on {count} examples it is "
                f"{together:.6g}, but the mean of its values on each single example is "
                f"{mean:.6g}. Return the mean over the batch, not a sum. A weighted "
                "mean divides by the number of examples, not by the sum of the "
                "weights. Replace a variance by the mean of (value − c)² with the "
                "centre c a part of y, and a worst group by the mean of loss² or of "
                "exp(c · loss) over examples, which weights large losses more."
                f"{_column(point[1], rows, count)}"
            )


def _not_finite(name: str, together: float, apart: Float[np.ndarray, "rows"]) -> str:
    values = []
    infinite = apart[~np.isfinite(apart)]
    if len(infinite):
        values.append(
            f"{infinite[0]} on {len(infinite)} of {len(apart)} single examples"
        )
    if not np.isfinite(together):
        values.append(f"{together} on a batch of {len(apart)} examples")
    return (
        f"{name} is not finite at the initial x and y: it is {' and '.join(values)}. "
        f"{NOT_FINITE}"
    )


def _column(y: Lower, rows: Batch, count: int) -> str:
    """Return a hint if an array is a column, as labels often are by mistake."""
    shapes = [list(np.shape(leaf)) for leaf in jax.tree.leaves(rows)]
    if [count, 1] not in shapes:
        columns = [np.shape(leaf) for leaf in jax.tree.leaves(y)]
        columns = [shape for shape in columns if len(shape) == 2 and shape[1] == 1]
        if not columns:
            return ""
        return (
            f" If y of shape {list(columns[0])} gives predictions of shape [n, 1], "
            "they broadcast with labels of shape [n] to [n, n]: give y one axis."
        )
    return (
        f" The arrays of the batch have shapes {', '.join(map(str, shapes))}: arrays "
        "of shapes [n, 1] and [n] broadcast to [n, n]. Store labels with shape [n]."
    )


def _all_finite(arrays: PyTree) -> bool:
    return all(
        bool(np.isfinite(leaf).all())
        for leaf in map(np.asarray, jax.tree.leaves(arrays))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    )


@partial(jax.jit, static_argnums=0)
def _values(
    loss: Loss, x: Upper, y: Lower, rows: Batch
) -> tuple[Float[Array, ""], Float[Array, "rows"]]:
    def single(row: Batch) -> Float[Array, ""]:
        return loss(x, y, jax.tree.map(lambda leaf: leaf[None], row))

    return loss(x, y, rows), jax.vmap(single)(rows)


def _rows(examples: StoredExamples) -> Batch:
    """Return a few examples of a device, at equal distances."""
    size = int(examples.size)
    indices = np.linspace(0, size - 1, min(size, MOST_ROWS)).astype(int)
    # A single example is repeated, because a batch of one cannot reveal a sum.
    rows = int(examples.offset) + (indices if size > 1 else np.zeros(2, int))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], examples.arrays)


def _near(variables: PyTree) -> PyTree:
    generator = np.random.default_rng(0)

    def add_noise(leaf: ArrayLike) -> np.ndarray:
        array = np.asarray(leaf)
        noise = DISTANCE * generator.normal(size=array.shape)
        return np.asarray(array + noise, array.dtype)

    return jax.tree.map(add_noise, variables)


def _tolerance(arrays: PyTree) -> float:
    """Return the square root of the coarsest precision: terms may cancel in a loss."""
    dtypes = {jax.dtypes.result_type(leaf) for leaf in jax.tree.leaves(arrays)}
    return max(
        sqrt(float(jnp.finfo(dtype).eps))  # type: ignore[no-untyped-call]
        for dtype in dtypes
        if jnp.issubdtype(dtype, jnp.floating)
    )
