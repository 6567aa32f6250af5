"""A round's devices dealt to the shards that hold them, in groups of chunks."""

from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.protocol import Job, Participants
from fedbilevel.engines.sharded.layout import Layout


class Group(NamedTuple):
    """Some chunks of every shard's devices, on the mesh.

    A chunk that is not full has weightless fillers.

    Attributes:
        rows: the devices' places in their shard's block.
        weights: zero for fillers.

    Example:
        >>> Group._fields
        ('rows', 'weights')
    """

    rows: Int[Array, "shards chunks chunk"]
    weights: Float[Array, "shards chunks chunk"]


class Assignment(NamedTuple):
    """A round's devices as they were dealt.

    Attributes:
        groups: on the mesh.
        devices: the device numbers of all groups, one row a shard.
        present: which of these are neither fillers nor absent.

    Example:
        >>> Assignment._fields
        ('groups', 'devices', 'present')
    """

    groups: tuple[Group, ...]
    devices: Int[np.ndarray, "groups shards width"]
    present: Bool[np.ndarray, "groups shards width"]


@lru_cache(maxsize=16)
def assign(
    participants: Participants, layout: Layout, chunk_size: int, room: int
) -> Assignment:
    """Assignment participants to their shards, at most `room` chunks of each at a time.

    Remembered: unless devices are sampled, the next round has the same participants.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.engines.sharded.layout import shards
        >>> chosen = Participants(np.array([0, 3, 4]), np.array([0.5, 0.25, 0.25]))
        >>> dealt = assign(chosen, Layout.of(shards(1), 5), chunk_size=2, room=2)
        >>> dealt.groups[0].rows.tolist(), dealt.groups[0].weights.tolist()
        ([[[0, 3], [4, 0]]], [[[0.5, 0.25], [0.25, 0.0]]])
    """
    order = np.argsort(participants.devices // layout.block, kind="stable")
    devices = participants.devices[order]
    shard = devices // layout.block
    counts = np.bincount(shard, minlength=layout.shards)
    place = np.arange(len(devices)) - (np.cumsum(counts) - counts)[shard]
    width = room * chunk_size
    number = max(1, -(-int(counts.max()) // width))
    # A filler stands for the first device of its shard, and counts for nothing.
    rows = np.zeros((number, layout.shards, width), np.int32)
    weights = np.zeros(rows.shape)
    where = place // width, shard, place % width
    rows[where] = devices - shard * layout.block
    weights[where] = participants.weights[order]
    first = np.arange(layout.shards, dtype=np.int32)[:, None] * layout.block

    def lay(group: np.ndarray) -> Array:
        shape = room, chunk_size
        return layout.split(shape, lambda shard: group[shard].reshape(shape))

    groups = tuple(Group(lay(r), lay(w)) for r, w in zip(rows, weights, strict=True))
    return Assignment(groups, rows + first, weights > 0)


def load(
    job: Job,
    layout: Layout,
    numbers: Int[np.ndarray, "shards width"],
    present: Bool[np.ndarray, "shards width"],
) -> StoredData:
    """Load a group's data: one entry a shard, made by the shard's own process.

    Only devices that take part are loaded.

    Example:
        >>> load.__name__
        'load'
    """
    loaded = {shard: _load(job, numbers[shard], present[shard]) for shard in layout.own}
    leaves, structure = jax.tree.flatten(next(iter(loaded.values())))
    parts = {shard: jax.tree.leaves(mine) for shard, mine in loaded.items()}

    def spread(place: int) -> Array:
        return layout.split(leaves[place].shape, lambda shard: parts[shard][place])

    data: StoredData = jax.tree.unflatten(structure, map(spread, range(len(leaves))))
    return data


def _load(
    job: Job,
    numbers: Int[np.ndarray, "width"],
    present: Bool[np.ndarray, "width"],
) -> StoredData:
    """Load a shard's devices, and zeros for those that do not take part."""
    places = np.flatnonzero(present)
    cohort = job.devices.cohort(numbers[places]) if len(places) else None

    def fill(form: StoredExamples, stored: StoredExamples | None) -> StoredExamples:
        offset, size = np.zeros(len(numbers), np.int32), np.ones(len(numbers), np.int32)

        def nothing(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            return np.zeros((leaf.shape[0] * len(numbers), *leaf.shape[1:]), leaf.dtype)

        arrays = jax.tree.map(nothing, form.arrays)
        if stored is not None:
            offset[places], size[places] = stored.offset, stored.size

            def write(whole: np.ndarray, leaf: np.ndarray) -> None:
                whole[: len(leaf)] = leaf

            jax.tree.map(write, arrays, stored.arrays)
        return StoredExamples(arrays, offset, size)

    return StoredData(
        fill(job.form.upper, cohort.upper if cohort else None),
        fill(job.form.lower, cohort.lower if cohort else None),
    )
