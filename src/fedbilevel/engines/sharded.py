"""The sharded engine: devices over a mesh, in one process or many."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Private,
    Server,
)
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.chunk import (
    LOADED_BYTES,
    chunk_size,
    rows_of,
    with_rows,
    work_of_chunk,
)
from fedbilevel.engines.dealing import Dealt, data_of, deal
from fedbilevel.engines.layout import (
    AXIS,
    EVERYWHERE,
    SPLIT,
    Layout,
    all_shards,
    place,
)
from fedbilevel.engines.mean import WeightedMean, conclude, merge, merge_across
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.mathematics.problem import BilevelProblem


@dataclass(frozen=True)
class Sharded:
    """Runs devices on all shards of a mesh at once, each shard its own block of them.

    A shard is a JAX device: a core of a CPU, an accelerator, here or in another
    process. It alone holds its devices' data and private state, and works in chunks as
    `Simulation` does. The mean of an exchange is an all-reduce. Every process of a run
    calls `run` with the same arguments and sees the same rounds.

    Attributes:
        mesh: of one axis named "shards"; by default all JAX devices of all processes.
        chunk_size: devices in a chunk; by default as many as share the cache.

    Example:
        >>> from fedbilevel import Sharded
        >>> Sharded(chunk_size=64)
        Sharded(mesh=None, chunk_size=64)
    """

    mesh: Mesh | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(
                f"Sharded needs chunk_size at least 1, but it is {self.chunk_size}."
            )
        if self.mesh is not None and self.mesh.axis_names != (AXIS,):
            raise ValueError(
                f"Sharded needs a mesh whose one axis is named {AXIS!r}, but it has "
                f"{self.mesh.axis_names}; make it with jax.make_mesh((n,), ({AXIS!r},))"
                "."
            )

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both laid out on the mesh: data, server and private state."""
        layout = self._layout(job)
        job = replace(job, devices=place(layout, job.devices))
        server, private = state
        return job, RunState(layout.everywhere(server), layout.rows(private))

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""
        layout = self._layout(job)
        usual = min(layout.block, -(-job.cohort_size // layout.shards))
        size = chunk_size(job, reference, self.chunk_size, usual)
        dealt = deal(participants, layout, size, _room(job, layout, usual, size))
        server, private = state
        common: Any = {
            "problem": job.problem,
            "reference": reference,
            "mesh": layout.mesh,
        }
        arguments = job.algorithm, server
        now = job.key, Moment(*map(np.int32, moment))
        total = None
        for group in dealt[:-1]:
            data = data_of(job.devices, layout, group)
            total, private = _collect(
                *arguments, private, data, group, total, *now, **common
            )
        # With an exchange under way elsewhere, waiting for this one's other shards
        # could block the threads they need.
        jax.block_until_ready(total)
        data = data_of(job.devices, layout, dealt[-1])
        server, private, info, dispersion = _exchange(
            *arguments, private, data, dealt[-1], total, *now, **common
        )
        return RunState(server, private), Report(participants.present, info, dispersion)

    def _layout(self, job: Job) -> Layout:
        return _layout(self.mesh, job.devices.device_count)


@cache
def _layout(mesh: Mesh | None, device_count: int) -> Layout:
    return Layout.of(mesh or all_shards(), device_count)


def _room(job: Job, layout: Layout, usual: int, size: int) -> int:
    """Return how many chunks of a shard one call takes."""
    # A sample falls unevenly on shards; room for twice the mean compiles nothing anew.
    everyone = job.cohort_size == job.devices.device_count
    most = min(layout.block, usual if everyone else 2 * usual)
    by_data = LOADED_BYTES // max(1, job.loaded_bytes * size)
    return max(1, min(-(-most // size), by_data))


def _sums(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    dealt: Dealt,
    total: WeightedMean | None,
    key: RandomKey,
    moment: Moment,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[WeightedMean, Private]:
    """Return one shard's mean over all its chunks; nothing is communicated."""
    upper, lower = data

    def work(
        chunk: Int[Array, ""] | int, private: Private
    ) -> tuple[WeightedMean, Private]:
        devices, rows, weights = (array[chunk] for array in dealt[:3])
        mean, kept = work_of_chunk(
            algorithm,
            server,
            rows_of(private, rows),
            StoredData(
                upper._replace(offset=upper.offset[chunk], size=upper.size[chunk]),
                lower._replace(offset=lower.offset[chunk], size=lower.size[chunk]),
            ),
            devices,
            weights,
            key,
            moment,
            problem=problem,
            reference=reference,
        )
        return mean, with_rows(private, rows, weights > 0, kept)

    def next_chunk(
        chunk: Int[Array, ""], carry: tuple[WeightedMean, Private]
    ) -> tuple[WeightedMean, Private]:
        total, private = carry
        mean, private = work(chunk, private)
        return merge(total, mean), private

    if len(dealt.devices) == 1:
        mean, private = work(0, private)
        return (mean if total is None else merge(total, mean)), private
    if total is None:
        shapes, _ = jax.eval_shape(work, 0, private)
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    result: tuple[WeightedMean, Private] = jax.lax.fori_loop(
        0, dealt.chunks, next_chunk, (total, private)
    )
    return result


_STATIC = "problem", "reference", "mesh"
_INPUTS = (EVERYWHERE, EVERYWHERE, SPLIT, SPLIT, SPLIT, SPLIT, EVERYWHERE, EVERYWHERE)
"""Where the arguments of `_sums` are."""


@partial(jax.jit, static_argnames=_STATIC, donate_argnames="private")
def _collect(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    dealt: Dealt,
    total: WeightedMean | None,
    key: RandomKey,
    moment: Moment,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
    mesh: Mesh,
) -> tuple[WeightedMean, Private]:
    """Add a group of chunks to every shard's mean."""

    def on_a_shard(*arguments: PyTree) -> tuple[WeightedMean, Private]:
        total, private = _sums(
            *_entries(arguments), problem=problem, reference=reference
        )
        return jax.tree.map(lambda leaf: leaf[None], total), private

    mapped = jax.shard_map(
        on_a_shard, mesh=mesh, in_specs=_INPUTS, out_specs=SPLIT, check_vma=False
    )
    result: tuple[WeightedMean, Private] = mapped(
        algorithm, server, private, data, dealt, total, key, moment
    )
    return result


@partial(jax.jit, static_argnames=_STATIC, donate_argnames="private")
def _exchange(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    dealt: Dealt,
    total: WeightedMean | None,
    key: RandomKey,
    moment: Moment,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
    mesh: Mesh,
) -> tuple[Server, Private, Info, PyTree]:
    """Add the last group, and let the server have the mean of all shards."""

    def on_a_shard(*arguments: PyTree) -> tuple[Server, Private, Info, PyTree]:
        own, private = _sums(*_entries(arguments), problem=problem, reference=reference)
        mean = merge_across(own, AXIS)
        algorithm, server = arguments[:2]
        server, dispersion = conclude(reference.of(algorithm, problem), server, mean)
        return server, private, mean.info, dispersion

    mapped = jax.shard_map(
        on_a_shard,
        mesh=mesh,
        in_specs=_INPUTS,
        out_specs=(EVERYWHERE, SPLIT, EVERYWHERE, EVERYWHERE),
        check_vma=False,
    )
    result: tuple[Server, Private, Info, PyTree] = mapped(
        algorithm, server, private, data, dealt, total, key, moment
    )
    return result


def _entries(arguments: PyTree) -> PyTree:
    """Return a shard's arguments without the axis that data, work and total have."""
    algorithm, server, private, data, dealt, total, *now = arguments
    data, dealt, total = jax.tree.map(lambda leaf: leaf[0], (data, dealt, total))
    return algorithm, server, private, data, dealt, total, *now
