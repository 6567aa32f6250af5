"""Assignment of a round's devices to their shards, in groups of chunks."""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.protocol import Job, Participants
from fedbilevel.engines.sharded.layout import Layout


class Group(NamedTuple):
    """Some chunks of devices of every shard, on the mesh.

    A chunk that is not full is padded with devices of weight zero.

    Attributes:
        rows: positions of the devices in the block of their shard.
        weights: weights of the devices, zero for padding.
    """

    rows: Int[Array, "shards chunks chunk"]
    weights: Float[Array, "shards chunks chunk"]


class Assignment(NamedTuple):
    """The devices of a round, assigned to shards.

    Attributes:
        groups: groups of chunks, on the mesh.
        devices: device numbers of all groups, one row for each shard.
        present: mask of `devices`: False for padding and absent devices.
    """

    groups: tuple[Group, ...]
    devices: Int[np.ndarray, "groups shards width"]
    present: Bool[np.ndarray, "groups shards width"]


@lru_cache(maxsize=16)
def assign(
    participants: Participants, layout: Layout, chunk_size: int, room: int
) -> Assignment:
    """Assign participants to their shards, in groups of at most `room` chunks.

    The result is cached: unless devices are sampled, the next round has the same
    participants.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.engines.sharded.layout import shards
        >>> cohort = Participants(np.array([0, 3, 4]), np.array([0.5, 0.25, 0.25]))
        >>> (group,) = assign(cohort, Layout.of(shards(1), 5), 2, room=2).groups
        >>> group.rows.tolist(), group.weights.tolist()
        ([[[0, 3], [4, 0]]], [[[0.5, 0.25], [0.25, 0.0]]])
    """
    order = np.argsort(participants.devices // layout.block, kind="stable")
    devices = participants.devices[order]
    shard = devices // layout.block
    counts = np.bincount(shard, minlength=layout.shards)
    position = np.arange(len(devices)) - (np.cumsum(counts) - counts)[shard]
    width = room * chunk_size
    number = max(1, -(-int(counts.max()) // width))
    # Padding has the row of the first device of its shard and weight zero.
    rows = np.zeros((number, layout.shards, width), np.int32)
    weights = np.zeros(rows.shape)
    index = position // width, shard, position % width
    rows[index] = devices - shard * layout.block
    weights[index] = participants.weights[order]
    first = np.arange(layout.shards, dtype=np.int32)[:, None] * layout.block

    def split(group: np.ndarray) -> Array:
        shape = room, chunk_size
        return layout.split(shape, lambda shard: group[shard].reshape(shape))

    pairs = zip(rows, weights, strict=True)
    groups = tuple(Group(split(row), split(weight)) for row, weight in pairs)
    return Assignment(groups, rows + first, weights > 0)


def load(
    job: Job,
    layout: Layout,
    numbers: Int[np.ndarray, "shards width"],
    present: Bool[np.ndarray, "shards width"],
) -> StoredData:
    """Load the data of a group's participants: one entry for each shard.

    Each process loads the entries of its own shards.
    """
    entries = {
        shard: _load(job, numbers[shard], present[shard])
        for shard in layout.local_shards
    }
    leaves, structure = jax.tree.flatten(next(iter(entries.values())))
    parts = {shard: jax.tree.leaves(entry) for shard, entry in entries.items()}

    def split(index: int) -> Array:
        return layout.split(leaves[index].shape, lambda shard: parts[shard][index])

    data: StoredData = jax.tree.unflatten(structure, map(split, range(len(leaves))))
    return data


def _load(
    job: Job,
    numbers: Int[np.ndarray, "width"],
    present: Bool[np.ndarray, "width"],
) -> StoredData:
    """Load the data of a shard's participants, with zeros for all other devices."""
    indices = np.flatnonzero(present)
    cohort = job.devices.cohort(numbers[indices]) if len(indices) else None

    def fill(form: StoredExamples, stored: StoredExamples | None) -> StoredExamples:
        offset, size = np.zeros(len(numbers), np.int32), np.ones(len(numbers), np.int32)

        def zeros(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            return np.zeros((leaf.shape[0] * len(numbers), *leaf.shape[1:]), leaf.dtype)

        arrays = jax.tree.map(zeros, form.arrays)
        term = jax.tree.map(lambda leaf: np.zeros(len(numbers), leaf.dtype), form.term)
        if stored is not None:
            offset[indices], size[indices] = stored.offset, stored.size

            def write(array: np.ndarray, leaf: np.ndarray) -> None:
                array[: len(leaf)] = leaf

            jax.tree.map(write, arrays, stored.arrays)
            jax.tree.map(
                lambda entries, own: np.put(entries, indices, own), term, stored.term
            )
        return StoredExamples(arrays, offset, size, term)

    form: Any = job.form
    return StoredData(
        fill(form.upper, cohort.upper if cohort else None),
        fill(form.lower, cohort.lower if cohort else None),
    )
