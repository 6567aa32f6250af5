"""The losses over all devices' data at once: F = Σ_k w_k f_k and G = Σ_k w_k g_k."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import StoredExamples
from fedbilevel.engines.checks import check_weights
from fedbilevel.engines.loss_checks import MOST_ROWS
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Loss, Lower, Upper


class FullData(NamedTuple):
    """All examples of one level, in blocks, each with its share of the global mean.

    Attributes:
        rows: a tree of arrays (blocks, block size, …).
        shares: w_k / n_k for each example of device k, and zero for filling.

    Example:
        >>> import jax.numpy as jnp
        >>> FullData(jnp.ones((2, 4)), jnp.full((2, 4), 1 / 8)).shares.shape
        (2, 4)
    """

    rows: Batch
    shares: Float[Array, "blocks block"]


def full_data(
    devices: Devices, weights: ArrayLike | None, block_size: int
) -> tuple[FullData, FullData]:
    """Return all upper and all lower examples, floating point in double precision.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> ones = np.ones(3)
        >>> devices = InMemoryDevices([LocalExamples(ones[:1], ones)] * 2)
        >>> upper, lower = full_data(devices, None, block_size=4)
        >>> lower.shares.sum(), lower.shares.shape
        (Array(1., dtype=float32), (2, 4))
    """
    count = devices.device_count
    array = check_weights(weights, count)
    # A device of weight zero is absent, whatever it holds.
    present = np.flatnonzero(array)
    cohort = devices.cohort(present)
    array = array[present] / array.sum()
    return (
        _blocks(cohort.upper, array, block_size),
        _blocks(cohort.lower, array, block_size),
    )


def full_data_problem(problem: BilevelProblem) -> BilevelProblem:
    """Return the same problem with losses that take `FullData` for a batch.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = lambda x, y, batch: jnp.mean(batch) * y
        >>> whole = full_data_problem(BilevelProblem(loss, loss))
        >>> data = FullData(jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]))
        >>> float(whole.lower_loss(jnp.array(0.0), jnp.array(2.0), data))
        3.0
    """
    return BilevelProblem(_whole(problem.upper_loss), _whole(problem.lower_loss))


def first_rows(data: FullData) -> Batch:
    """Return a few examples, to try a loss on.

    Example:
        >>> import jax.numpy as jnp
        >>> data = FullData(jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]]))
        >>> first_rows(data)
        Array([1., 2.], dtype=float32)
    """
    return jax.tree.map(lambda leaf: leaf[0, :MOST_ROWS], data.rows)


def _whole(loss: Loss) -> Loss:
    def total(x: Upper, y: Lower, data: FullData, /) -> Float[Array, ""]:
        def one(row: Batch) -> Float[Array, ""]:
            return loss(x, y, jax.tree.map(lambda leaf: leaf[None], row))

        # Recomputing a block on the way back bounds memory by one block.
        @jax.checkpoint
        def block(part: FullData) -> Float[Array, ""]:
            losses = jax.vmap(one)(part.rows)
            return jnp.sum(part.shares.astype(losses.dtype) * losses)

        return jnp.sum(jax.lax.map(block, data))

    return total


def _blocks(
    examples: StoredExamples, weights: Float[np.ndarray, "devices"], block_size: int
) -> FullData:
    length = len(jax.tree.leaves(examples.arrays)[0])
    begins, ends = examples.offset, examples.offset + examples.size
    # Devices may share rows: each adds its own share, found by running sums.
    cover, change = np.zeros(length + 1, int), np.zeros(length + 1)
    for array, amount in ((cover, 1), (change, weights / examples.size)):
        np.add.at(array, begins, amount)
        np.add.at(array, ends, -amount)
    rows = np.flatnonzero(np.cumsum(cover[:-1]))
    shares = np.cumsum(change[:-1])[rows]
    size = min(block_size, len(rows))
    filler = -len(rows) % size
    # Filling repeats a real example: an invented one might have no finite loss.
    rows = np.pad(rows, (0, filler), mode="edge")

    def arrange(leaf: Array | np.ndarray) -> Array:
        chosen = np.asarray(leaf)[rows]
        if np.issubdtype(chosen.dtype, np.floating):
            chosen = chosen.astype(np.float64)
        return jnp.asarray(chosen.reshape(-1, size, *chosen.shape[1:]))

    return FullData(
        jax.tree.map(arrange, examples.arrays),
        jnp.asarray(np.pad(shares, (0, filler)).reshape(-1, size)),
    )
