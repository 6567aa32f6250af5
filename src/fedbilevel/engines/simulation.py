"""The simulation engine: any number of devices in one process, in compiled chunks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Private
from fedbilevel.engines.block import block_capacity, run_block
from fedbilevel.engines.checks import check_chunk_size
from fedbilevel.engines.chunk import (
    Chunk,
    GatheredUploads,
    chunk_size,
    gather_chunk,
    reach_among,
    replicate,
    rows_of,
    travel_limit,
    travel_of_chunk,
    with_rows,
    work_of_chunk,
)
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.mean import (
    WeightedMean,
    jit_conclude,
    jit_stacked_mean,
    merge,
)
from fedbilevel.engines.protocol import (
    Block,
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)


@dataclass(frozen=True)
class Simulation:
    """An engine that simulates all devices in one process, in compiled chunks.

    All devices of a chunk run at once. Memory depends on the size of a chunk, not on
    the number of devices.

    Attributes:
        chunk_size: number of devices in a chunk; by default as many as fit into the
            cache.
    """

    chunk_size: int | None = None

    key_is_secret = True
    """Only this program knows the key, from which noise and samples follow."""
    sees_uploads = False
    """No server: one program has all data."""
    noised_means = 0
    """A repeated exchange has the same noise, which spends nothing."""

    def __post_init__(self) -> None:
        check_chunk_size("Simulation", self.chunk_size)

    def example_device(self, device_count: int) -> int:
        """Return 0: this process has the data of all devices."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return the private states of all devices, which all start at `private`."""
        return replicate(private, device_count)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return job and state unchanged."""
        return job, state

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Run an exchange; return the state after it and its report."""
        # The size depends on the usual cohort, so that other rounds reuse the program.
        size = chunk_size(job, reference, self.chunk_size, job.cohort_size)
        server, private = state
        stateful = bool(jax.tree.leaves(private))
        program = PhaseProgram(job.problem, reference)
        inputs = Inputs.of(job, server, moment)
        total: WeightedMean | None = None
        gathered: list[GatheredUploads] = []
        counted = []

        def loaded(part: Participants) -> Chunk:
            return Chunk(
                _rows(private, part.devices) if stateful else private,
                job.devices.cohort(part.devices),
                part.devices,
                part.weights,
                job.limits,
            )

        chunks, reach = list(_chunks(participants, size)), None
        limit = travel_limit(job, reference)
        if len(chunks) > 1 and limit is not None:
            pieces = [_travel(inputs, loaded(chunk), program) for chunk in chunks]
            reach = reach_among(pieces, limit)
        stores_uploads = len(chunks) > 1 and (
            program.of(job.algorithm).aggregation.mean is not None
        )
        for chunk in chunks:
            if stores_uploads:
                uploads = _gather(inputs, loaded(chunk), program, reach)
                states, mask = uploads.private, uploads.counted
                gathered.append(uploads._replace(private=(), counted=()))
            else:
                mean, states, mask = _work(inputs, loaded(chunk), program, reach)
                total = mean if total is None else _merge(total, mean)
            counted.append(mask)
            if stateful:
                private = _with_rows(private, chunk.devices, mask, states)
        if stores_uploads:
            received, infos, shares, _, _ = jax.tree.map(
                lambda *pieces: jnp.concatenate(pieces), *gathered
            )
            total = jit_stacked_mean(inputs, received, infos, shares, program=program)
        assert total is not None, "a round has at least one participant"
        largest = np.max(participants.weights)
        server, dispersion = jit_conclude(inputs, total, largest, program=program)
        return RunState(server, private), Report(
            participants.devices,
            participants.weights > 0,
            tuple(counted),
            total.info,
            dispersion,
        )

    def rounds_at_once(self, job: Job) -> int:
        """Return the most rounds of a call; 0 if a round has several chunks."""
        if type(self).exchange is not Simulation.exchange:
            # A subclass that overrides exchange expects a call for every exchange.
            return 0
        sizes = [
            chunk_size(job, reference, self.chunk_size, job.cohort_size)
            for reference in job.phases
        ]
        single = job.devices.in_memory and min(sizes) == job.cohort_size
        return block_capacity(job) if single else 0

    def rounds(
        self,
        job: Job,
        first: int,
        state: RunState,
        participants: Sequence[Participants],
    ) -> Block:
        """Run several rounds in one compiled call."""
        return run_block(job, first, state, participants)


def _chunks(participants: Participants, size: int) -> Iterator[Participants]:
    """Split participants into chunks, the last padded with devices of weight zero."""
    # Padding repeats a real device, so that it cannot introduce other numbers.
    padding = -len(participants.devices) % size
    devices = participants.devices.astype(np.int32)
    devices = np.concatenate([devices, np.repeat(devices[-1:], padding)])
    weights = np.concatenate([participants.weights, np.zeros(padding)])
    for first in range(0, len(devices), size):
        yield Participants(devices[first : first + size], weights[first : first + size])


_work = jax.jit(work_of_chunk, static_argnames="program")
_gather = jax.jit(gather_chunk, static_argnames="program")
_travel = jax.jit(travel_of_chunk, static_argnames="program")
_merge = jax.jit(merge)
_rows = jax.jit(rows_of)
# The old state is donated, so that the rows of a chunk are written in place: otherwise
# each chunk would copy the private states of all devices.
_with_rows = jax.jit(with_rows, donate_argnames="private")
