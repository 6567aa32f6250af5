"""What one device sees of its data: two sets of examples to draw batches from."""

from typing import NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedbilevel.mathematics.problem import Batch

RandomKey: TypeAlias = Key[Array, ""]


class Examples(Protocol):
    """A set of examples that batches are drawn from, inside compiled code."""

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return `draws` independent batches of `batch_size` examples each."""


class DeviceData(NamedTuple):
    """The data of one device, or of several along a leading axis.

    Attributes:
        upper: the examples ξ of the upper loss, often a validation set.
        lower: the examples ζ of the lower loss, often a training set.

    Example:
        >>> import jax.numpy as jnp
        >>> examples = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> DeviceData(upper=examples, lower=examples).lower.count
        Array(6, dtype=int32, weak_type=True)
    """

    upper: Examples
    lower: Examples


class StoredExamples(NamedTuple):
    """Rows `offset` to `offset + count` of arrays that devices may share.

    Devices of any size stand one after another in the same arrays, so ragged devices
    need no padding, and drawing for many devices at once is a single flat gather.

    Attributes:
        arrays: a tree of arrays with the same leading axis.
        offset: where the device's rows begin.
        count: how many rows it has.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> examples = StoredExamples(jnp.arange(9.0), jnp.array(4), jnp.array(1))
        >>> examples.draw(jax.random.key(0), batch_size=2, draws=1)
        (Array([4., 4.], dtype=float32),)
    """

    arrays: Batch
    offset: Int[Array, "*devices"]
    # A tuple has a method of this name; a set of examples has the number instead.
    count: Int[Array, "*devices"]  # type: ignore[assignment]

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return `draws` independent batches, uniform with replacement."""
        rows = self.offset + jax.random.randint(
            key, (draws, batch_size), 0, self.count, dtype=self.offset.dtype
        )
        # One gather a batch: a batch cut out of a larger gather is copied once more.
        return tuple(
            jax.tree.map(lambda array, i=i: _rows(array, rows[i]), self.arrays)
            for i in range(draws)
        )


def _rows(array: Array, rows: Int[Array, "batch"]) -> Array:
    return array.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def one_device(cohort: DeviceData, index: int = 0) -> DeviceData:
    """Return the data of one device of a cohort.

    Example:
        >>> import numpy as np
        >>> rows = StoredExamples(np.arange(6.0), np.array([0, 4]), np.array([4, 2]))
        >>> int(one_device(DeviceData(rows, rows), index=1).lower.count)
        2
    """

    def only(examples: StoredExamples) -> StoredExamples:
        return StoredExamples(
            jax.tree.map(jnp.asarray, examples.arrays),
            jnp.asarray(examples.offset)[index],
            jnp.asarray(examples.count)[index],
        )

    return DeviceData(only(cohort.upper), only(cohort.lower))


SHARED_ARRAYS = DeviceData(
    upper=StoredExamples(arrays=None, offset=0, count=0),  # type: ignore[arg-type]
    lower=StoredExamples(arrays=None, offset=0, count=0),  # type: ignore[arg-type]
)
"""The axes of a cohort's data: shared arrays, an offset and a count a device."""
