"""The sharded engine: devices over a mesh, in one process or many."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from fedbilevel.algorithms.protocol import Phase, Private
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
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)
from fedbilevel.engines.sharded.assignment import Group, assign, load
from fedbilevel.engines.sharded.layout import AXIS, Layout, put_data, shards
from fedbilevel.engines.sharded.programs import (
    Program,
    Work,
    collect,
    exchange,
    measure,
)


@dataclass(frozen=True)
class Sharded:
    """An engine that splits devices over the shards of a mesh, in one process or many.

    A shard is a JAX device: a core of a CPU, or an accelerator, of any process. It has
    the data and private states of a block of devices, and works in chunks as
    `Simulation` does. The mean of an exchange is an all-reduce. Every process of a run
    calls `run` with the same arguments and gets the same rounds. With data on demand, a
    process loads only the data of its own shards.

    Attributes:
        mesh: mesh with one axis named "shards"; by default all JAX devices of all
            processes.
        chunk_size: number of devices in a chunk; by default as many as fit into the
            cache.
    """

    mesh: Mesh | None = None
    chunk_size: int | None = None

    key_is_secret = True
    """Only this program knows the key, from which noise and samples follow."""
    sees_uploads = False
    """No server: one program has all data."""
    noised_means = 0
    """A repeated exchange has the same noise, which spends nothing."""

    def __post_init__(self) -> None:
        check_chunk_size("Sharded", self.chunk_size)
        if self.mesh is not None and not isinstance(self.mesh, Mesh):
            raise TypeError(
                f"mesh of Sharded is {self.mesh!r}. Pass "
                f"jax.make_mesh((n,), ({AXIS!r},)), or omit mesh to use all JAX "
                "devices."
            )
        if self.mesh is not None and self.mesh.axis_names != (AXIS,):
            raise ValueError(
                f"mesh of Sharded has the axes {self.mesh.axis_names}, but needs one "
                f"axis named {AXIS!r}. Pass jax.make_mesh((n,), ({AXIS!r},))."
            )

    def example_device(self, device_count: int) -> int:
        """Return the first device of this process."""
        layout = _layout(self.mesh, device_count)
        return min(layout.local_shards[0] * layout.block, device_count - 1)

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the private states of all devices, which all start at `private`."""
        return replicate(private, device_count)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return job and state on the mesh: data, server and private states."""
        layout = self._layout(job)
        inputs = [job.problem, job.algorithm, job.key, job.limits, state.server]
        # A single process cannot differ from others, and a digest takes time.
        if jax.process_count() > 1 and not multihost.same(fingerprint(inputs)):
            raise ValueError(
                "The processes of this run have different problems, algorithms, seeds, "
                "limits or initial points. Start all processes with the same script "
                "and arguments."
            )
        algorithm, key, limits, server = layout.everywhere(
            (job.algorithm, job.key, job.limits, state.server)
        )
        job = replace(
            job,
            algorithm=algorithm,
            key=key,
            limits=limits,
            placed=put_data(layout, job.devices),
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
        """Run an exchange; return the state after it and its report."""
        layout = self._layout(job)
        usual = min(layout.block, -(-job.cohort_size // layout.shards))
        size = chunk_size(job, reference, self.chunk_size, usual)
        room = _room(job, layout, usual, size)
        assignment = assign(participants, layout, size, room)
        server, private = state
        phase = PhaseProgram(job.problem, reference)
        program = Program(phase, layout, loaded=job.placed is None)
        inputs = Inputs.of(job, server, moment)
        counted: list[Array] = []
        total, reach = None, None
        largest = np.max(participants.weights)

        def work_of(group: Group, numbers: Any, present: Any) -> Work:
            data = job.placed or load(job, layout, numbers, present)
            return Work(inputs, job.limits, data, group, total, reach, largest)

        groups = list(zip(*assignment, strict=True))
        if len(groups) > 1:
            _require_streaming(phase.of(job.algorithm), len(groups))
        several = len(groups) > 1 or assignment.groups[0].rows.shape[1] > 1
        limit = travel_limit(job, reference)
        if several and limit is not None:
            pieces = [measure(private, work_of(*group), program) for group in groups]
            reach = reach_among(pieces, limit)
        for group, numbers, present in groups:
            work = work_of(group, numbers, present)
            if group is not assignment.groups[-1]:
                private, total, mask = collect(private, work, program)
                counted.append(mask)
        # An all-reduce that starts while shards compute could block their threads.
        jax.block_until_ready(total)
        earlier = jax.block_until_ready(layout.replicate(counted)) if counted else ()
        result = exchange(private, work, program)
        return RunState(result.server, result.private), Report(
            assignment.devices.ravel(),
            assignment.present.ravel(),
            (*earlier, result.counted),
            result.info,
            result.dispersion,
        )

    def _layout(self, job: Job) -> Layout:
        return _layout(self.mesh, job.devices.device_count)


def _layout(mesh: Mesh | None, device_count: int) -> Layout:
    return _layouts(mesh or shards(), device_count)


_layouts = cache(Layout.of)


def _require_streaming(phase: Phase, groups: int) -> None:
    if phase.aggregation.mean is not None:
        raise ValueError(
            f"Sharded: phase {phase.name!r} has a robust mean, which needs all uploads "
            f"of an exchange at once, but the devices are loaded in {groups} groups. "
            "Keep the examples in memory, or let fewer devices participate."
        )


def _room(job: Job, layout: Layout, usual: int, size: int) -> int:
    """Return the number of chunks of a shard in one call."""
    # A sample is uneven over shards; room for twice the mean avoids recompilation.
    full = job.cohort_size == job.devices.device_count
    most = min(layout.block, usual if full else 2 * usual)
    by_data = LOADED_BYTES // max(1, job.loaded_bytes * size)
    return max(1, min(-(-most // size), by_data))
