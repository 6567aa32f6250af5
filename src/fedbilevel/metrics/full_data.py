"""The losses over the data of all devices: F = Σ_k w_k f_k and G = Σ_k w_k g_k."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import StoredExamples
from fedbilevel.data.weights import Weighting, level_weights
from fedbilevel.engines.loss_checks import MOST_ROWS
from fedbilevel.mathematics.arrays import has_tensors
from fedbilevel.mathematics.batches import SiteBatch, SiteTerm, for_devices
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Loss, Lower, Upper


class FullData(NamedTuple):
    """All examples of one level in blocks, with their shares of the global mean.

    Attributes:
        rows: a tree of arrays (blocks, block size, …).
        shares: w_k / n_k for each example of device k, and zero for padding.

    Example:
        >>> import jax.numpy as jnp
        >>> FullData(jnp.ones((2, 4)), jnp.full((2, 4), 1 / 8)).shares.shape
        (2, 4)
    """

    rows: Batch
    shares: Float[Array, "blocks block"]


def full_data(
    devices: Devices, weights: Weighting, block_size: int
) -> tuple[FullData, FullData]:
    """Return all upper and all lower examples, with floats in double precision.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> ones = np.ones(3)
        >>> devices = InMemoryDevices([LocalExamples(ones[:1], ones)] * 2)
        >>> upper, lower = full_data(devices, None, block_size=4)
        >>> lower.shares.sum(), lower.shares.shape
        (Array(1., dtype=float32), (2, 4))
    """
    levels = level_weights(devices, weights)
    # A device of weight zero is absent, so its data are not loaded.
    present = np.flatnonzero(levels.devices)
    cohort = devices.cohort(present)
    if has_tensors(cohort):
        raise TypeError(
            "devices has tensors, which JAX does not read. Pass the examples as arrays "
            "of NumPy in InMemoryDevices."
        )
    return (
        _blocks(cohort.upper, present, levels.upper[present], block_size),
        _blocks(cohort.lower, present, levels.lower[present], block_size),
    )


def full_data_problem(problem: BilevelProblem) -> BilevelProblem:
    """Return the same problem with losses of `FullData` instead of a batch.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = lambda x, y, batch: jnp.mean(batch) * y
        >>> whole = full_data_problem(BilevelProblem(loss, loss))
        >>> data = FullData(jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]))
        >>> float(whole.lower_loss(jnp.array(0.0), jnp.array(2.0), data))
        3.0
    """
    inner = for_devices(problem.for_jax)
    if problem.view is not None:
        # JAX cannot differentiate a loss of PyTorch.
        return inner.map(_full_oracle)
    return BilevelProblem(_full_loss(inner.upper_loss), _full_loss(inner.lower_loss))


def first_rows(data: FullData) -> Batch:
    """Return the first examples, for the trial of a loss.

    Example:
        >>> import jax.numpy as jnp
        >>> data = FullData(jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]))
        >>> first_rows(data)
        Array([1., 2.], dtype=float32)
    """
    return jax.tree.map(lambda leaf: leaf[0, :MOST_ROWS], data.rows)


def _full_loss(loss: Loss) -> Loss:
    def total(x: Upper, y: Lower, data: FullData, /) -> Float[Array, ""]:
        def single(row: Batch) -> Float[Array, ""]:
            return loss(x, y, jax.tree.map(lambda leaf: leaf[None], row))

        # The backward pass recomputes each block, which limits memory to one block.
        @jax.checkpoint
        def block(part: FullData) -> Float[Array, ""]:
            losses = jax.vmap(single)(part.rows)
            return jnp.sum(part.shares.astype(losses.dtype) * losses)

        return jnp.sum(jax.lax.map(block, data))

    return total


def _full_oracle(oracle: Callable[..., Any]) -> Callable[..., Any]:
    def total(x: Upper, y: Lower, data: FullData, *vectors: Lower) -> Any:
        def single(row: Batch) -> Any:
            batch = jax.tree.map(lambda leaf: leaf[None], row)
            return oracle(x, y, batch, *vectors)

        def block(part: FullData) -> Any:
            return jax.tree.map(
                lambda leaf: jnp.tensordot(part.shares.astype(leaf.dtype), leaf, 1),
                jax.vmap(single)(part.rows),
            )

        return jax.tree.map(lambda leaf: leaf.sum(0), jax.lax.map(block, data))

    return total


def _blocks(
    examples: StoredExamples,
    devices: Int[np.ndarray, "devices"],
    weights: Float[np.ndarray, "devices"],
    block_size: int,
) -> FullData:
    length = len(jax.tree.leaves(examples.arrays)[0])
    counted = weights > 0
    devices, weights = devices[counted], weights[counted]
    offsets, sizes = examples.offset[counted], examples.size[counted]
    starts, ends = offsets, offsets + sizes
    # Devices may share rows: running sums add the shares of all devices of a row.
    cover, change = np.zeros(length + 1, int), np.zeros(length + 1)
    for array, amount in ((cover, 1), (change, weights / sizes)):
        np.add.at(array, starts, amount)
        np.add.at(array, ends, -amount)
    holders = np.cumsum(cover[:-1])
    rows = np.flatnonzero(holders)
    shares = np.cumsum(change[:-1])[rows]
    size = min(block_size, len(rows))
    padding = -len(rows) % size
    # Padding repeats a real example: the loss of zeros might not be finite.
    rows = np.pad(rows, (0, padding), mode="edge")

    def arrange(leaf: Array | np.ndarray) -> Array:
        array = np.asarray(leaf)[rows]
        if np.issubdtype(array.dtype, np.floating):
            array = array.astype(np.float64)
        return jnp.asarray(array.reshape(-1, size, *array.shape[1:]))

    batch = examples.arrays
    if holders.max() == 1:
        # No two devices share examples, so each example has a site.
        owner = np.zeros(length, np.int32)
        for device, start, end in zip(devices, starts, ends, strict=True):
            owner[start:end] = device
        batch = SiteBatch(batch, SiteTerm(owner, np.ones(length)))
    return FullData(
        jax.tree.map(arrange, batch),
        jnp.asarray(np.pad(shares, (0, padding)).reshape(-1, size)),
    )
