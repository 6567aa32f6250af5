"""The sharded engine: devices over a mesh, in one process or many."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from fedbilevel.engines.chunk import LOADED_BYTES, chunk_size
from fedbilevel.engines.dealing import data_of, deal
from fedbilevel.engines.layout import AXIS, EVERYWHERE, Layout, all_shards, place
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.shard_programs import Work, collect, exchange


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

    def example_device(self, device_count: int) -> int:
        """Return the first device of this process."""
        layout = _layout(self.mesh, device_count)
        return min(layout.own[0] * layout.block, device_count - 1)

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
        groups = deal(participants, layout, size, _room(job, layout, usual, size))
        server, private = state
        now = Moment(*map(np.int32, moment))
        program: Any = {
            "problem": job.problem,
            "reference": reference,
            "mesh": layout.mesh,
        }
        counted: list[Array] = []
        total = None
        for last, dealt in enumerate(groups, 1 - len(groups)):
            data = data_of(job.devices, layout, dealt)
            work = Work(
                job.algorithm,
                server,
                job.key,
                now,
                job.norm_limit,
                data,
                dealt,
                total,
            )
            if last:
                private, total, who = collect(private, work, **program)
                counted.append(who)
        # An all-reduce while shards are still at work could starve them of threads.
        jax.block_until_ready(total)
        done = exchange(private, work, **program)
        asked, present = (
            np.concatenate([np.ravel(part) for part in parts])
            for parts in zip(*((g.devices, g.weights > 0) for g in groups), strict=True)
        )
        who = *(_gathered(part, layout.mesh) for part in counted), done.counted
        report = Report(asked, present, who, done.info, done.dispersion)
        return RunState(done.server, done.private), report

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


def _gathered(array: Array, mesh: Mesh) -> Array:
    everywhere = NamedSharding(mesh, EVERYWHERE)
    gathered: Array = jax.jit(lambda a: a, out_shardings=everywhere)(array)
    return gathered
