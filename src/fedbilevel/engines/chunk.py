"""The work of some devices at once: what compiled engines have in common."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.algorithms.protocol import (
    Downlink,
    FederatedAlgorithm,
    Info,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.data.examples import COHORT_AXES, RandomKey, StoredData
from fedbilevel.engines.device_work import run_device
from fedbilevel.engines.limits import Limits, reach_of
from fedbilevel.engines.mean import WeightedMean, stacked_mean
from fedbilevel.engines.protocol import Job, Moment, PhaseReference, device_key
from fedbilevel.engines.screening import acceptable, distances
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem

CHUNK_BYTES = 1_500_000
"""What a chunk's devices hold at once: about a core's cache, where it ran fastest."""
Reach: TypeAlias = Float[Array | np.ndarray, "variables"]
"""How far uploads may go in each variable."""
LOADED_BYTES = 256_000_000
"""The most that is loaded at once of devices whose data come on demand."""


class Travel(NamedTuple):
    """How far some devices' uploads go.

    Attributes:
        distances: of each variable and device.
        allowed: whose uploads are finite, and within the norm limit.

    Example:
        >>> Travel._fields
        ('distances', 'allowed')
    """

    distances: Float[Array, "variables devices"]
    allowed: Bool[Array, "devices"]


def chunk_size(
    job: Job, reference: PhaseReference, most: int | None, devices: int
) -> int:
    """Return how many devices to run at once, of so many that there usually are.

    Chunks are equal, so that the last is not mostly empty.

    Args:
        job: the run.
        reference: the phase.
        most: the most that a user wants; by default as many as share the cache.
        devices: how many a round usually has.

    Example:
        >>> from fedbilevel.engines.chunk import chunk_size
        >>> chunk_size.__name__
        'chunk_size'
    """
    if most is None:
        by_work = CHUNK_BYTES // max(1, job.costs[reference].working_bytes)
        by_data = LOADED_BYTES // max(1, job.loaded_bytes)
        most = max(1, min(by_work, by_data))
    return -(-devices // -(-devices // most))


def work_of_chunk(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    devices: Int[Array, "chunk"],
    weights: Float[Array, "chunk"],
    key: RandomKey,
    moment: Moment,
    limits: Limits,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
    reach: Reach | None = None,
    axis: str | None = None,
    spread_wanted: Bool[Array, ""] | None = None,
) -> tuple[WeightedMean, Private, Bool[Array, "chunk"]]:
    """Carry out one exchange with a chunk of devices, all of them at once.

    Returns the mean of the uploads, what devices keep, and whose uploads counted. How
    far uploads may go is found from this chunk where it is not given; from those of all
    shards where there is an axis of them. The mean's deviation may not be wanted
    (`stacked_mean`).

    Example:
        >>> from fedbilevel.engines.chunk import work_of_chunk
        >>> work_of_chunk.__name__
        'work_of_chunk'
    """
    uploads = _uploads(
        algorithm, server, private, data, devices, key, moment, problem, reference
    )
    counted = acceptable(uploads.received, uploads.infos, weights > 0, limits)
    if uploads.phase.is_compared and limits.distance is not None:
        gone = _distances(uploads, counted)
        if reach is None:
            reach = _reach(gone, counted, limits.distance, axis)
        counted &= jnp.all(gone <= reach[:, None], axis=0)
    shares = jnp.where(counted, weights, 0)
    mean = stacked_mean(uploads.received, uploads.infos, shares, spread_wanted)
    return mean, uploads.kept, counted


def travel_of_chunk(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    devices: Int[Array, "chunk"],
    weights: Float[Array, "chunk"],
    key: RandomKey,
    moment: Moment,
    limits: Limits,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> Travel:
    """Return how far the uploads of a chunk go, and which of them are acceptable.

    The work is done for that alone. Where devices come in several chunks, how far is
    too far is known when all have been seen, and no upload is kept until then.

    Example:
        >>> travel_of_chunk.__name__
        'travel_of_chunk'
    """
    uploads = _uploads(
        algorithm, server, private, data, devices, key, moment, problem, reference
    )
    allowed = acceptable(uploads.received, uploads.infos, weights > 0, limits)
    return Travel(_distances(uploads, allowed), allowed)


def travel_limit(job: Job, reference: PhaseReference) -> float | None:
    """Return how many times as far as the median the uploads of a phase may go.

    Example:
        >>> travel_limit.__name__
        'travel_limit'
    """
    limit = job.limits.distance
    if limit is None or not reference.of(job.algorithm, job.problem).is_compared:
        return None
    return float(limit)


def reach_among(seen: Sequence[Travel], limit: float) -> Reach:
    """Return how far uploads may go, from all devices' in any number of pieces.

    Example:
        >>> near = Travel(jnp.array([[1.0, 2.0]]), jnp.array([True, True]))
        >>> far = Travel(jnp.array([[9e9]]), jnp.array([True]))
        >>> reach_among([near, far], limit=10.0).tolist()
        [20.0]
    """
    gone = np.concatenate([one.distances for one in seen], axis=1)
    allowed = np.concatenate([one.allowed for one in seen])
    furthest: Reach = reach_of(np, gone, allowed, limit)
    return furthest


class _Uploads(NamedTuple):
    phase: Phase
    downlink: Downlink
    received: Upload
    kept: Private
    infos: Info


def _uploads(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    devices: Int[Array, "chunk"],
    key: RandomKey,
    moment: Moment,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> _Uploads:
    phase = reference.of(algorithm, problem)
    keys = jax.vmap(device_key, in_axes=(None, None, 0))(key, moment, devices)
    downlink = phase.broadcast(server)
    done = jax.vmap(partial(run_device, phase, downlink), (0, COHORT_AXES, 0))(
        private, data, keys
    )
    received = jax.vmap(phase.decode_upload, (0, None))(done.upload, downlink)
    return _Uploads(phase, downlink, received, done.private, done.info)


def _distances(uploads: _Uploads, allowed: Bool[Array, "chunk"]) -> Any:
    """Return how far uploads go in each variable."""
    ways = jax.vmap(uploads.phase.deviations, in_axes=(0, None))(
        uploads.received, uploads.downlink
    )
    return distances(jnp, ways, allowed)


def _reach(
    gone: Float[Array, "variables chunk"],
    allowed: Bool[Array, "chunk"],
    limit: tree.Scalar,
    axis: str | None,
) -> Reach:
    if axis is not None:
        gone = jax.lax.all_gather(gone, axis, axis=1, tiled=True)
        allowed = jax.lax.all_gather(allowed, axis, tiled=True)
    furthest: Reach = reach_of(jnp, gone, allowed, limit)
    return furthest


def replicate(private: Private, device_count: int) -> Private:
    """Return private states of all devices, alike at first.

    Example:
        >>> import jax.numpy as jnp
        >>> replicate(jnp.ones(3), device_count=5).shape
        (5, 3)
    """
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (device_count, *leaf.shape)), private
    )


def rows_of(private: Private, rows: Int[Array, "chunk"]) -> Private:
    """Return some devices' private states.

    Example:
        >>> rows_of(jnp.arange(5.0), jnp.array([3, 1]))
        Array([3., 1.], dtype=float32)
    """
    return jax.tree.map(lambda leaf: leaf[rows], private)


def with_rows(
    private: Private,
    rows: Int[Array, "chunk"],
    counted: Bool[Array, "chunk"],
    new: Private,
) -> Private:
    """Return private states with those of devices whose uploads counted replaced.

    Example:
        >>> new, counted = jnp.array([7.0, 8.0]), jnp.array([True, False])
        >>> with_rows(jnp.zeros(3), jnp.array([2, 0]), counted, new)
        Array([0., 0., 7.], dtype=float32)
    """

    def write(leaf: Array, new: Array) -> Array:
        # What must not be written lies beyond the end, where a write is dropped.
        places = jnp.where(counted, rows, len(leaf))
        return leaf.at[places].set(new.astype(leaf.dtype), mode="drop")

    return jax.tree.map(write, private, new)
