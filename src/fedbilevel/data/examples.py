"""The data of one device: two sets of examples to draw batches from."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from fedbilevel.mathematics import keys
from fedbilevel.mathematics.arrays import at_least_single
from fedbilevel.mathematics.batches import SiteBatch, SiteTerm
from fedbilevel.mathematics.problem import Batch, Upper
from fedbilevel.mathematics.sites import view_of_site

RandomKey: TypeAlias = keys.RandomKey


@runtime_checkable
class Examples(Protocol):
    """A set of examples that batches are drawn from, inside compiled code."""

    @property
    def size(self) -> Int[Array | np.ndarray, "*devices"]:
        """The number of examples."""

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return `draws` independent batches of `batch_size` examples each."""

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Return the mean of a function over all examples.

        Args:
            function: function of a batch that returns the mean over its examples.
            batch_size: number of examples evaluated at once.
        """


@runtime_checkable
class DeviceData(Protocol):
    """The data of one device, as an algorithm sees it."""

    @property
    def upper(self) -> Examples:
        """The examples ξ of the upper loss, often a validation set."""

    @property
    def lower(self) -> Examples:
        """The examples ζ of the lower loss, often a training set."""


class StoredExamples(NamedTuple):
    """Rows `offset` to `offset + size` of arrays that devices may share.

    Devices of any size are concatenated in the same arrays, so ragged devices need no
    padding, and drawing for many devices at once is a single flat gather.

    Attributes:
        arrays: tree of arrays with the same leading axis.
        offset: first row of the device.
        size: number of rows of the device.
        term: number of the device and factor of its loss, if losses depend on them;
            batches are of type `SiteBatch` then.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> examples = StoredExamples(jnp.arange(9.0), jnp.array(4), jnp.array(1))
        >>> examples.draw(jax.random.key(0), batch_size=2, draws=1)
        (Array([4., 4.], dtype=float32),)
    """

    arrays: Batch
    offset: Int[Array | np.ndarray, "*devices"]
    size: Int[Array | np.ndarray, "*devices"]
    term: SiteTerm | None = None

    def draw(self, key: RandomKey, batch_size: int, draws: int) -> tuple[Batch, ...]:
        """Return `draws` independent batches, uniform with replacement."""
        shape = draws, batch_size
        numbers = jax.random.randint(key, shape, 0, self.size, self.offset.dtype)
        rows = jnp.asarray(self.offset) + numbers
        # One gather per batch: slicing a batch out of a larger gather copies it again.
        return tuple(
            self._batch(
                jax.tree.map(lambda array, i=i: _rows(array, rows[i]), self.arrays)
            )
            for i in range(draws)
        )

    def mean(self, function: Callable[[Batch], PyTree], batch_size: int) -> PyTree:
        """Return the mean over all examples, `batch_size` of them at a time.

        Args:
            function: function of a batch that returns the mean over its examples, such
                as a loss or an oracle.
            batch_size: number of examples evaluated at once; memory grows with it.

        Example:
            >>> import jax.numpy as jnp
            >>> rows = StoredExamples(jnp.arange(9.0), jnp.array(4), jnp.array(5))
            >>> float(rows.mean(jnp.mean, batch_size=2))
            6.0
        """
        size = jnp.asarray(self.size)
        positions = jnp.arange(batch_size, dtype=size.dtype)

        def rows(first: Array) -> Batch:
            # Rows beyond the end repeat the last example and are not counted: zeros
            # might have no finite loss.
            indices = jnp.asarray(self.offset) + jnp.minimum(
                first + positions, size - 1
            )
            return self._batch(
                jax.tree.map(lambda array: _rows(array, indices), self.arrays)
            )

        def add_batch(number: Array, total: PyTree) -> PyTree:
            batch = function(rows(number * batch_size))
            return jax.tree.map(
                lambda a, b: a + batch_size * at_least_single(b), total, batch
            )

        def single(row: Batch) -> PyTree:
            return function(jax.tree.map(lambda leaf: leaf[None], row))

        full = size // batch_size
        # The last batch is not full, so its examples are evaluated one by one: the
        # mean over a padded batch would count the padding.
        last = rows(full * batch_size)
        counted = full * batch_size + positions < size

        def add_rows(leaf: Array) -> Array:
            shape = batch_size, *(1,) * (leaf.ndim - 1)
            wide = jnp.where(counted.reshape(shape), at_least_single(leaf), 0)
            return jnp.sum(wide, axis=0)

        # A sum of many examples exceeds the range and the precision of half floats.
        each = jax.vmap(single)(last)
        total = jax.lax.fori_loop(0, full, add_batch, jax.tree.map(add_rows, each))
        return jax.tree.map(
            lambda leaf, like: (leaf / size.astype(leaf.dtype)).astype(like.dtype),
            total,
            each,
        )

    def _batch(self, rows: Batch) -> Batch:
        if self.term is None:
            return rows
        count = len(jax.tree.leaves(rows)[0])
        # A column of each number: everything in a batch has one row per example.
        return SiteBatch(
            rows,
            jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count,)), self.term),
        )


class StoredData(NamedTuple):
    """The stored examples of one device, or of a cohort along a leading axis.

    Attributes:
        upper: examples of the upper loss.
        lower: examples of the lower loss.
    """

    upper: StoredExamples
    lower: StoredExamples


def _rows(array: Array, rows: Int[Array, "batch"]) -> Array:
    return array.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def one_device(cohort: StoredData, index: int | Int[Array, ""] = 0) -> StoredData:
    """Return the data of one device of a cohort.

    Example:
        >>> import numpy as np
        >>> rows = StoredExamples(np.arange(6.0), np.array([0, 4]), np.array([4, 2]))
        >>> int(one_device(StoredData(rows, rows), index=1).lower.size)
        2
    """

    def select(examples: StoredExamples) -> StoredExamples:
        return StoredExamples(
            jax.tree.map(jnp.asarray, examples.arrays),
            *jax.tree.map(
                lambda leaf: jnp.asarray(leaf)[index],
                (examples.offset, examples.size, examples.term),
            ),
        )

    return StoredData(select(cohort.upper), select(cohort.lower))


def seen_by(device: Any, x: Upper) -> Upper:
    """Return x as the losses of a device take it, with its own rows.

    Args:
        device: data of the device, of arrays or of tensors.
        x: upper variable.

    Example:
        >>> examples = StoredExamples(np.arange(6.0), np.array(0), np.array(6))
        >>> seen_by(StoredData(examples, examples), 1.5)
        1.5
    """
    term = device.upper.term
    return x if term is None else view_of_site(x, term.number)


_AXES: Any = StoredExamples(arrays=None, offset=0, size=0, term=0)  # type: ignore[arg-type]
COHORT_AXES = StoredData(upper=_AXES, lower=_AXES)
"""The `vmap` axes of a cohort: shared arrays, one offset and size per device."""
