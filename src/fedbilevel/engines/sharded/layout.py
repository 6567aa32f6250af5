"""Which shard of a mesh holds which devices, and their data and state on it."""

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
"""The axis of a mesh that devices are laid along."""
EVERYWHERE = PartitionSpec()
SPLIT = PartitionSpec(AXIS)


def shards(number: int | None = None) -> Mesh:
    """Return a mesh of the first JAX devices, by default of all of all processes.

    Example:
        >>> shards(1).axis_names
        ('shards',)
    """
    return Mesh(np.array(jax.devices()[:number]), (AXIS,))


class Layout(NamedTuple):
    """Equal blocks of consecutive devices, one a shard; the last may not be full.

    Attributes:
        mesh: of one axis.
        block: devices a shard.

    Example:
        >>> Layout.of(shards(1), device_count=5).block
        5
    """

    mesh: Mesh
    block: int

    @classmethod
    def of(cls, mesh: Mesh, device_count: int) -> "Layout":
        """Return the layout of so many devices."""
        # Rebuilt: the axis types of jax.make_mesh ask callers to reshard every input.
        layout = cls(Mesh(mesh.devices, (AXIS,)), -(-device_count // mesh.size))
        if not layout.own:
            raise ValueError(
                f"the mesh has no JAX device of process {jax.process_index()}; give "
                "every process of the run a part of it."
            )
        return layout

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self.mesh.size

    @property
    def own(self) -> list[int]:
        """The shards that this process has."""
        mine = jax.process_index()
        places = enumerate(self.mesh.devices.flat)
        return [shard for shard, place in places if place.process_index == mine]

    def everywhere(self, tree: PyTree) -> PyTree:
        """Put a copy of every leaf on each shard, from wherever it is."""
        return self.gathered(jax.tree.map(_on_the_host, tree))

    def gathered(self, tree: PyTree) -> PyTree:
        """Give each shard all of what is split among them.

        Nothing else may be under way: an all-gather could wait for its threads.
        """
        return _copies(self.mesh)(tree)

    def split(self, shape: tuple[int, ...], part: Callable[[int], Any]) -> Array:
        """Return an array with one entry a shard; `part` makes those of own shards."""

        def entry(index: Any) -> np.ndarray:
            return np.asarray(part(index[0].start or 0))[None]

        sharding = NamedSharding(self.mesh, SPLIT)
        return jax.make_array_from_callback((self.shards, *shape), sharding, entry)

    def rows(self, tree: PyTree) -> PyTree:
        """Lay arrays with one row a device along the mesh, filled up with zeros."""

        def lay(leaf: Array) -> Array:
            host = np.asarray(leaf)
            shape = self.shards * self.block, *host.shape[1:]

            def part(index: Any) -> np.ndarray:
                first = index[0].start or 0
                return _filled(host[first : first + self.block], self.block)

            sharding = NamedSharding(self.mesh, SPLIT)
            return jax.make_array_from_callback(shape, sharding, part)

        return jax.tree.map(lay, tree)


@cache
def _copies(mesh: Mesh) -> Callable[[PyTree], PyTree]:
    # Compiled: it leaves weak types weak, and takes random keys.
    return jax.jit(lambda leaves: leaves, out_shardings=NamedSharding(mesh, EVERYWHERE))


def _on_the_host(leaf: Any) -> Any:
    """Return an array of one JAX device as one that any other will take."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        )
    return leaf.item() if leaf.weak_type else np.asarray(leaf)


def _filled(rows: np.ndarray, length: int) -> np.ndarray:
    """Return rows filled up with zeros: all shards have arrays of one shape."""
    missing = length - len(rows)
    return np.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)])


def place(layout: Layout, devices: Devices) -> StoredData | None:
    """Lay data that are in memory on the mesh: each shard has those of its block.

    Offsets and sizes stand by place in the block. None if data come on demand.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> held = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> placed = place(Layout.of(shards(1), 2), InMemoryDevices([held, held]))
        >>> placed.lower.offset
        Array([[0, 8]], dtype=int32)
    """
    if not devices.in_memory:
        return None
    whole = devices.cohort(np.arange(devices.device_count))
    return StoredData(_place(layout, whole.upper), _place(layout, whole.lower))


def _place(layout: Layout, stored: StoredExamples) -> StoredExamples:
    offsets, sizes = np.asarray(stored.offset), np.asarray(stored.size)
    # A place without a device has one example: nothing can be drawn from none.
    starts = np.zeros((layout.shards, layout.block), np.int32)
    counts = np.ones((layout.shards, layout.block), np.int32)
    rows = []
    for shard in range(layout.shards):
        block = slice(shard * layout.block, (shard + 1) * layout.block)
        # Devices may share examples: a shard holds each of them once.
        mine, inverse = np.unique(offsets[block], return_inverse=True)
        ends = dict(zip(offsets[block], offsets[block] + sizes[block], strict=True))
        parts = [np.arange(first, ends[first]) for first in mine]
        begins = np.cumsum([0, *map(len, parts)])[:-1]
        starts[shard, : len(inverse)] = begins[inverse]
        counts[shard, : len(inverse)] = sizes[block]
        rows.append(np.concatenate(parts) if parts else np.zeros(1, int))
    longest = max(map(len, rows))

    def lay(leaf: Array) -> Array:
        host = np.asarray(leaf)

        def part(shard: int) -> np.ndarray:
            return _filled(host[rows[shard]], longest)

        return layout.split((longest, *host.shape[1:]), part)

    return StoredExamples(
        jax.tree.map(lay, stored.arrays),
        layout.split((layout.block,), starts.__getitem__),
        layout.split((layout.block,), counts.__getitem__),
    )
