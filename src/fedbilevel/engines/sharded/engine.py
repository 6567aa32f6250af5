"""The sharded engine: devices over a mesh, in one process or many."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from fedbilevel.algorithms.protocol import Private
from fedbilevel.engines import multihost
from fedbilevel.engines.checks import check_chunk_size
from fedbilevel.engines.chunk import (
    LOADED_BYTES,
    chunk_size,
    reach_among,
    replicate,
    travel_limit,
)
from fedbilevel.engines.fingerprint import fingerprint
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.sharded.assignment import Group, assign, load
from fedbilevel.engines.sharded.layout import AXIS, Layout, place, shards
from fedbilevel.engines.sharded.programs import (
    Program,
    Work,
    collect,
    exchange,
    measure,
)


@dataclass(frozen=True)
class Sharded:
    """Runs devices on all shards of a mesh at once, each shard its own block of them.

    A shard is a JAX device: a core of a CPU, an accelerator, here or in another
    process. It has its own devices' data and private state, and works in chunks as
    `Simulation` does. The mean of an exchange is an all-reduce. Every process of a run
    calls `run` with the same arguments and sees the same rounds; of data on demand it
    loads its own devices' alone.

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
        check_chunk_size("Sharded", self.chunk_size)
        if self.mesh is not None and not isinstance(self.mesh, Mesh):
            raise TypeError(
                f"Sharded needs a jax.sharding.Mesh, but got {self.mesh!r}; make it "
                f"with jax.make_mesh((n,), ({AXIS!r},)), or leave it out to use all "
                "JAX devices."
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

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return every device's, alike at first."""
        return replicate(private, device_count)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both laid out on the mesh: data, server and private state."""
        layout = self._layout(job)
        asked = [job.problem, job.algorithm, job.key, job.limits, state.server]
        # A single process has nobody to differ from, and a digest takes its time.
        if jax.process_count() > 1 and not multihost.same(fingerprint(asked)):
            raise ValueError(
                "the processes of this run were given different problems, algorithms, "
                "seeds or starting points; start them with the same script and "
                "arguments."
            )
        algorithm, key, limits, server = layout.everywhere(
            (job.algorithm, job.key, job.limits, state.server)
        )
        job = replace(
            job,
            algorithm=algorithm,
            key=key,
            limits=limits,
            placed=place(layout, job.devices),
        )
        return job, RunState(server, layout.rows(state.private))

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
        dealt = assign(participants, layout, size, _room(job, layout, usual, size))
        server, private = state
        program = Program(job.problem, reference, layout, loaded=job.placed is None)
        now = np.array(moment, np.int32)
        counted: list[Array] = []
        total, reach = None, None

        def work_of(group: Group, numbers: Any, present: Any) -> Work:
            data = job.placed or load(job, layout, numbers, present)
            settings = job.algorithm, server, job.key, now, job.limits
            return Work(*settings, data, group, total, reach)

        groups = list(zip(*dealt, strict=True))
        several = len(groups) > 1 or dealt.groups[0].rows.shape[1] > 1
        limit = travel_limit(job, reference)
        if several and limit is not None:
            seen = [measure(private, work_of(*group), program) for group in groups]
            reach = reach_among(seen, limit)
        for group, numbers, present in groups:
            work = work_of(group, numbers, present)
            if group is not dealt.groups[-1]:
                private, total, who = collect(private, work, program)
                counted.append(who)
        # An all-reduce while shards are still at work could starve them of threads.
        jax.block_until_ready(total)
        earlier = jax.block_until_ready(layout.gathered(counted)) if counted else ()
        done = exchange(private, work, program)
        who = *earlier, done.counted
        return RunState(done.server, done.private), Report(
            dealt.devices.ravel(),
            dealt.present.ravel(),
            who,
            done.info,
            done.dispersion,
        )

    def _layout(self, job: Job) -> Layout:
        return _layout(self.mesh, job.devices.device_count)


def _layout(mesh: Mesh | None, device_count: int) -> Layout:
    return _layouts(mesh or shards(), device_count)


_layouts = cache(Layout.of)


def _room(job: Job, layout: Layout, usual: int, size: int) -> int:
    """Return how many chunks of a shard one call takes."""
    # A sample falls unevenly on shards; room for twice the mean compiles nothing anew.
    everyone = job.cohort_size == job.devices.device_count
    most = min(layout.block, usual if everyone else 2 * usual)
    by_data = LOADED_BYTES // max(1, job.loaded_bytes * size)
    return max(1, min(-(-most // size), by_data))
