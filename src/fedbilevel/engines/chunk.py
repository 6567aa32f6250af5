"""The work of a chunk of devices at once, shared by all compiled engines."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.algorithms.protocol import (
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.data.examples import COHORT_AXES, StoredData
from fedbilevel.engines.device_work import run_device
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.limits import Limits, reach_of
from fedbilevel.engines.mean import WeightedMean, stacked_mean
from fedbilevel.engines.protocol import Job, PhaseReference, device_key
from fedbilevel.engines.screening import acceptable, distances
from fedbilevel.mathematics import tree

CHUNK_BYTES = 1_500_000
"""Working memory of a chunk: about the cache of a core, where chunks ran fastest."""
Reach: TypeAlias = Float[Array | np.ndarray, "variables"]
"""The largest accepted distance of an upload in each variable."""
LOADED_BYTES = 256_000_000
"""The most bytes loaded at once of devices whose data are loaded on demand."""


class Chunk(NamedTuple):
    """Some devices of an exchange, and their inputs.

    Attributes:
        private: private states of the devices.
        data: examples of the devices.
        devices: device numbers.
        weights: weights of the devices in the mean; an absent device has weight zero.
        limits: limits on the devices' uploads.
    """

    private: Private
    data: StoredData
    devices: Int[Array | np.ndarray, "chunk"]
    weights: Float[Array | np.ndarray, "chunk"]
    limits: Limits


class Travel(NamedTuple):
    """The distances of some devices' uploads from the server's point.

    Attributes:
        distances: distance of each device's upload in each variable.
        allowed: mask of the uploads that are finite and within the norm limit.
    """

    distances: Float[Array, "variables devices"]
    allowed: Bool[Array, "devices"]


class GatheredUploads(NamedTuple):
    """The uploads of some devices, along a leading axis.

    Attributes:
        received: uploads as the server averages them.
        infos: values that the devices report.
        shares: weights of the devices, 0 if the upload does not count.
        private: private states of the devices.
        counted: mask of the uploads that count.
    """

    received: Upload
    infos: Info
    shares: Float[Array, "devices"]
    private: Private
    counted: Bool[Array, "devices"]


def chunk_size(
    job: Job, reference: PhaseReference, most: int | None, devices: int
) -> int:
    """Return the number of devices to run at once.

    Chunks have equal sizes, so that the last is not mostly padding.

    Args:
        job: inputs of the run.
        reference: the phase.
        most: upper bound from the user; by default as many as fit into the cache.
        devices: usual number of participants of a round.
    """
    if most is None:
        by_work = CHUNK_BYTES // max(1, job.costs[reference].working_bytes)
        by_data = LOADED_BYTES // max(1, job.loaded_bytes)
        most = max(1, min(by_work, by_data))
    return -(-devices // -(-devices // most))


def work_of_chunk(
    inputs: Inputs,
    chunk: Chunk,
    program: PhaseProgram,
    reach: Reach | None = None,
    axis: str | None = None,
    spread_wanted: Bool[Array, ""] | None = None,
) -> tuple[WeightedMean, Private, Bool[Array, "chunk"]]:
    """Run one exchange with a chunk of devices, all of them at once.

    If `reach` is None, the distance limit is computed from this chunk, or from the
    chunks of all shards along `axis`. `stacked_mean` describes `spread_wanted`.

    Returns:
        The mean of the accepted uploads, the devices' private states, and a mask of the
        accepted uploads.
    """
    uploads = gather_chunk(inputs, chunk, program, reach, axis)
    phase = program.of(inputs.algorithm)
    mean = stacked_mean(
        uploads.received,
        uploads.infos,
        uploads.shares,
        spread_wanted,
        phase.aggregation,
        phase.broadcast(inputs.server),
    )
    return mean, uploads.private, uploads.counted


def travel_of_chunk(inputs: Inputs, chunk: Chunk, program: PhaseProgram) -> Travel:
    """Return the distances of the uploads of a chunk, and a mask of acceptable ones.

    The uploads are discarded. With several chunks the limit depends on the distances of
    all devices, and no upload is stored until then.
    """
    uploads = _uploads(inputs, chunk, program)
    return Travel(_distances(uploads), uploads.allowed)


def travel_limit(job: Job, reference: PhaseReference) -> float | None:
    """Return the distance limit of a phase, as a multiple of the median, or None."""
    limit = job.limits.distance
    if limit is None or not reference.of(job.algorithm, job.problem).is_compared:
        return None
    return float(limit)


def reach_among(pieces: Sequence[Travel], limit: float) -> Reach:
    """Return the largest accepted distances, from those of all devices.

    Example:
        >>> near = Travel(jnp.array([[1.0, 2.0]]), jnp.array([True, True]))
        >>> far = Travel(jnp.array([[9e9]]), jnp.array([True]))
        >>> reach_among([near, far], limit=10.0).tolist()
        [20.0]
    """
    lengths = np.concatenate([piece.distances for piece in pieces], axis=1)
    allowed = np.concatenate([piece.allowed for piece in pieces])
    reach: Reach = reach_of(np, lengths, allowed, limit)
    return reach


def gather_chunk(
    inputs: Inputs,
    chunk: Chunk,
    program: PhaseProgram,
    reach: Reach | None = None,
    axis: str | None = None,
) -> GatheredUploads:
    """Run one exchange with a chunk of devices; return all uploads, not their mean.

    A robust mean needs all uploads of an exchange at once.
    """
    uploads = _uploads(inputs, chunk, program)
    counted, limit = uploads.allowed, chunk.limits.distance
    if uploads.phase.is_compared and limit is not None:
        lengths = _distances(uploads)
        if reach is None:
            reach = _reach(lengths, counted, limit, axis)
        counted &= jnp.all(lengths <= reach[:, None], axis=0)
    return GatheredUploads(
        uploads.received,
        uploads.infos,
        jnp.where(counted, chunk.weights, 0),
        uploads.private,
        counted,
    )


class _Uploads(NamedTuple):
    """The uploads of a chunk, and a mask of those within the norm limit."""

    phase: Phase
    downlink: Downlink
    received: Upload
    private: Private
    infos: Info
    allowed: Bool[Array, "chunk"]


def _uploads(inputs: Inputs, chunk: Chunk, program: PhaseProgram) -> _Uploads:
    phase = program.of(inputs.algorithm)
    keys = jax.vmap(device_key, in_axes=(None, None, 0))(
        inputs.key, inputs.moment, chunk.devices
    )
    downlink = phase.broadcast(inputs.server)
    result = jax.vmap(partial(run_device, phase, downlink), (0, COHORT_AXES, 0))(
        chunk.private, chunk.data, keys
    )
    received = jax.vmap(phase.decode_upload, (0, None))(result.upload, downlink)
    allowed = acceptable(received, result.info, chunk.weights > 0, chunk.limits)
    return _Uploads(phase, downlink, received, result.private, result.info, allowed)


def _distances(uploads: _Uploads) -> Any:
    """Return the distances of uploads in each variable."""
    ways = jax.vmap(uploads.phase.deviations, in_axes=(0, None))(
        uploads.received, uploads.downlink
    )
    return distances(jnp, ways, uploads.allowed)


def _reach(
    lengths: Float[Array, "variables chunk"],
    allowed: Bool[Array, "chunk"],
    limit: tree.Scalar,
    axis: str | None,
) -> Reach:
    if axis is not None:
        lengths = jax.lax.all_gather(lengths, axis, axis=1, tiled=True)
        allowed = jax.lax.all_gather(allowed, axis, tiled=True)
    reach: Reach = reach_of(jnp, lengths, allowed, limit)
    return reach


def replicate(private: Private, device_count: int) -> Private:
    """Return a copy of the first private state for each device.

    Example:
        >>> import jax.numpy as jnp
        >>> replicate(jnp.ones(3), device_count=5).shape
        (5, 3)
    """
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (device_count, *leaf.shape)), private
    )


def rows_of(private: Private, rows: Int[Array | np.ndarray, "chunk"]) -> Private:
    """Return the private states of some devices.

    Example:
        >>> rows_of(jnp.arange(5.0), jnp.array([3, 1]))
        Array([3., 1.], dtype=float32)
    """
    return jax.tree.map(lambda leaf: leaf[rows], private)


def with_rows(
    private: Private,
    rows: Int[Array | np.ndarray, "chunk"],
    counted: Bool[Array | np.ndarray, "chunk"],
    new: Private,
) -> Private:
    """Return private states with new rows for the devices whose uploads counted.

    Example:
        >>> new, counted = jnp.array([7.0, 8.0]), jnp.array([True, False])
        >>> with_rows(jnp.zeros(3), jnp.array([2, 0]), counted, new)
        Array([0., 0., 7.], dtype=float32)
    """

    def write(leaf: Array, new: Array) -> Array:
        # Excluded rows get an index beyond the end, where JAX drops the write.
        indices = jnp.where(counted, rows, len(leaf))
        return leaf.at[indices].set(new.astype(leaf.dtype), mode="drop")

    return jax.tree.map(write, private, new)
