"""The layout of devices, their data and their states on the shards of a mesh."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import StoredData, StoredExamples

AXIS = "shards"
"""The axis of a mesh along which devices are split."""
EVERYWHERE = PartitionSpec()
SPLIT = PartitionSpec(AXIS)


def shards(number: int | None = None) -> Mesh:
    """Return a mesh of the first JAX devices; by default all of all processes.

    Example:
        >>> shards(1).axis_names
        ('shards',)
    """
    return Mesh(np.array(jax.devices()[:number]), (AXIS,))


class Layout(NamedTuple):
    """Equal blocks of consecutive devices, one for each shard; the last may be padded.

    Attributes:
        mesh: mesh with one axis.
        block: number of devices of a shard.

    Example:
        >>> Layout.of(shards(1), device_count=5).block
        5
    """

    mesh: Mesh
    block: int

    @classmethod
    def of(cls, mesh: Mesh, device_count: int) -> "Layout":
        """Return the layout of a number of devices."""
        # A new mesh: the axis types of jax.make_mesh require resharding every input.
        layout = cls(Mesh(mesh.devices, (AXIS,)), -(-device_count // mesh.size))
        if not layout.local_shards:
            raise ValueError(
                f"mesh has no JAX device of process {jax.process_index()}. Pass a mesh "
                "with at least one JAX device of every process."
            )
        return layout

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self.mesh.size

    @property
    def local_shards(self) -> list[int]:
        """The shards of this process."""
        process = jax.process_index()
        devices = enumerate(self.mesh.devices.flat)
        return [shard for shard, device in devices if device.process_index == process]

    def everywhere(self, tree: PyTree) -> PyTree:
        """Return a copy of every leaf on each shard; leaves may be on any device."""
        return self.replicate(jax.tree.map(_to_host, tree))

    def replicate(self, tree: PyTree) -> PyTree:
        """Return a copy of every leaf on each shard; leaves may be split over shards.

        No other program may be running: an all-gather could wait for its threads.
        """
        return _replication(self.mesh)(tree)

    def split(self, shape: tuple[int, ...], part: Callable[[int], Any]) -> Array:
        """Return an array with one entry for each shard.

        `part` returns the entry of a shard of this process.
        """

        def entry(index: Any) -> np.ndarray:
            return np.asarray(part(index[0].start or 0))[None]

        sharding = NamedSharding(self.mesh, SPLIT)
        return jax.make_array_from_callback((self.shards, *shape), sharding, entry)

    def rows(self, tree: PyTree) -> PyTree:
        """Return arrays with one row for each device on the mesh, padded with zeros."""

        def put(leaf: Array) -> Array:
            host = np.asarray(leaf)
            shape = self.shards * self.block, *host.shape[1:]

            def part(index: Any) -> np.ndarray:
                first = index[0].start or 0
                return _pad(host[first : first + self.block], self.block)

            sharding = NamedSharding(self.mesh, SPLIT)
            return jax.make_array_from_callback(shape, sharding, part)

        return jax.tree.map(put, tree)


@cache
def _replication(mesh: Mesh) -> Callable[[PyTree], PyTree]:
    # jit keeps weak types weak, and accepts random keys.
    return jax.jit(lambda leaves: leaves, out_shardings=NamedSharding(mesh, EVERYWHERE))


def _to_host(leaf: Any) -> Any:
    """Return an array of one JAX device as an array that any JAX device accepts."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            jnp.asarray(np.asarray(jax.random.key_data(leaf))),
            impl=jax.random.key_impl(leaf),
        )
    return leaf.item() if leaf.weak_type else np.asarray(leaf)


def _pad(rows: np.ndarray, length: int) -> np.ndarray:
    """Return rows padded with zeros: the arrays of all shards have the same shape."""
    padding = length - len(rows)
    return np.pad(rows, [(0, padding), *[(0, 0)] * (rows.ndim - 1)])


def put_data(layout: Layout, devices: Devices) -> StoredData | None:
    """Return data on the mesh, or None if they are loaded on demand.

    Each shard has the data of its block. Offsets and sizes have the order of the block.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> devices = InMemoryDevices([examples, examples])
        >>> put_data(Layout.of(shards(1), 2), devices).lower.offset
        Array([[0, 8]], dtype=int32)
    """
    if not devices.in_memory:
        return None
    data = devices.cohort(np.arange(devices.device_count))
    return StoredData(_put(layout, data.upper), _put(layout, data.lower))


def _put(layout: Layout, stored: StoredExamples) -> StoredExamples:
    offsets, sizes = np.asarray(stored.offset), np.asarray(stored.size)
    # Padding has one example, since a draw needs at least one.
    starts = np.zeros((layout.shards, layout.block), np.int32)
    counts = np.ones((layout.shards, layout.block), np.int32)
    rows = []
    for shard in range(layout.shards):
        block = slice(shard * layout.block, (shard + 1) * layout.block)
        # Devices may share examples: a shard stores each example once.
        unique, inverse = np.unique(offsets[block], return_inverse=True)
        ends = dict(zip(offsets[block], offsets[block] + sizes[block], strict=True))
        parts = [np.arange(first, ends[first]) for first in unique]
        firsts = np.cumsum([0, *map(len, parts)])[:-1]
        starts[shard, : len(inverse)] = firsts[inverse]
        counts[shard, : len(inverse)] = sizes[block]
        rows.append(np.concatenate(parts) if parts else np.zeros(1, int))
    longest = max(map(len, rows))

    def put(leaf: Array) -> Array:
        host = np.asarray(leaf)

        def part(shard: int) -> np.ndarray:
            return _pad(host[rows[shard]], longest)

        return layout.split((longest, *host.shape[1:]), part)

    def put_entries(entries: np.ndarray) -> Array:
        padded = _pad(entries, layout.shards * layout.block)
        return layout.split(
            (layout.block,), padded.reshape(layout.shards, layout.block).__getitem__
        )

    return StoredExamples(
        jax.tree.map(put, stored.arrays),
        layout.split((layout.block,), starts.__getitem__),
        layout.split((layout.block,), counts.__getitem__),
        jax.tree.map(put_entries, stored.term),
    )
