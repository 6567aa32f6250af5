"""A round's devices dealt to the shards that hold them, in groups of chunks."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.data.devices import Devices
from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.layout import Layout, PlacedDevices
from fedbilevel.engines.protocol import Participants


class Dealt(NamedTuple):
    """What every shard has to do: so many chunks of devices.

    A chunk that is not full has weightless fillers.

    Attributes:
        devices: device numbers.
        rows: their places in their shard's block.
        weights: zero for fillers.
        chunks: of each shard, those that have any device at all.

    Example:
        >>> Dealt._fields
        ('devices', 'rows', 'weights', 'chunks')
    """

    devices: Int[np.ndarray, "shards chunks chunk"]
    rows: Int[np.ndarray, "shards chunks chunk"]
    weights: Float[np.ndarray, "shards chunks chunk"]
    chunks: Int[np.ndarray, "shards"]


def deal(
    participants: Participants, layout: Layout, chunk_size: int, room: int
) -> list[Dealt]:
    """Deal participants to their shards, at most `room` chunks of each at a time.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.engines.layout import all_shards
        >>> chosen = Participants(np.array([0, 3, 4]), np.array([0.5, 0.25, 0.25]))
        >>> dealt = deal(chosen, Layout.of(all_shards(), 5), chunk_size=2, room=2)
        >>> dealt[0].devices.tolist(), dealt[0].weights.tolist()
        ([[[0, 3], [4, 0]]], [[[0.5, 0.25], [0.25, 0.0]]])
    """
    order = np.argsort(participants.devices // layout.block, kind="stable")
    devices = participants.devices[order]
    shard = devices // layout.block
    counts = np.bincount(shard, minlength=layout.shards)
    place = np.arange(len(devices)) - (np.cumsum(counts) - counts)[shard]
    groups = max(1, -(-int(counts.max()) // (chunk_size * room)))
    shape = layout.shards, groups * room * chunk_size
    first = np.arange(layout.shards, dtype=np.int32)[:, None] * layout.block
    # A filler repeats a device of its shard, so that it can add no numbers of its own.
    numbers, rows = np.broadcast_to(first, shape).copy(), np.zeros(shape, np.int32)
    weights = np.zeros(shape)
    numbers[shard, place] = devices
    rows[shard, place] = devices - shard * layout.block
    weights[shard, place] = participants.weights[order]
    grouped = layout.shards, room, chunk_size
    dealt = []
    for group in range(groups):
        here = slice(group * room * chunk_size, (group + 1) * room * chunk_size)
        left = np.clip(counts - here.start, 0, room * chunk_size)
        dealt.append(
            Dealt(
                devices=numbers[:, here].reshape(grouped),
                rows=rows[:, here].reshape(grouped),
                weights=weights[:, here].reshape(grouped),
                chunks=-(-left.astype(np.int32) // chunk_size),
            )
        )
    return dealt


def data_of(devices: Devices, layout: Layout, dealt: Dealt) -> StoredData:
    """Return the dealt devices' data: one entry a shard, made by its own process.

    Example:
        >>> data_of.__name__
        'data_of'
    """
    if isinstance(devices, PlacedDevices):
        return devices.cohort(np.minimum(dealt.devices, devices.device_count - 1))
    loaded = {shard: _load(devices, dealt, shard) for shard in layout.own}
    example = next(iter(loaded.values()))

    leaves, structure = jax.tree.flatten(example)
    parts = {shard: jax.tree.leaves(mine) for shard, mine in loaded.items()}

    def spread(place: int) -> Array:
        return layout.split(leaves[place].shape, lambda shard: parts[shard][place])

    data: StoredData = jax.tree.unflatten(structure, map(spread, range(len(leaves))))
    return data


def _load(devices: Devices, dealt: Dealt, shard: int) -> StoredData:
    """Load a shard's real devices; fillers see the examples of the first."""
    numbers = dealt.devices[shard].ravel()
    real = dealt.weights[shard].ravel() > 0
    places = np.flatnonzero(real) if real.any() else np.array([0])
    wanted = np.minimum(numbers[places], devices.device_count - 1)
    cohort = devices.cohort(wanted)

    def fill(stored: StoredExamples) -> StoredExamples:
        offset = np.zeros(len(numbers), np.int32)
        size = np.full(len(numbers), stored.size[0], np.int32)
        offset[places], size[places] = stored.offset, stored.size
        shape = dealt.devices.shape[1:]

        def padded(leaf: np.ndarray) -> np.ndarray:
            rows = len(leaf) // len(places) * len(numbers)
            whole = np.zeros((rows, *leaf.shape[1:]), leaf.dtype)
            whole[: len(leaf)] = leaf
            return whole

        return StoredExamples(
            jax.tree.map(padded, stored.arrays),
            offset.reshape(shape),
            size.reshape(shape),
        )

    return StoredData(fill(cohort.upper), fill(cohort.lower))
