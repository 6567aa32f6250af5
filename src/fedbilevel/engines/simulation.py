"""Simulation: any number of devices in one process, a compiled chunk at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Private
from fedbilevel.engines.block import block_capacity, run_block
from fedbilevel.engines.checks import check_chunk_size
from fedbilevel.engines.chunk import (
    chunk_size,
    reach_among,
    replicate,
    rows_of,
    travel_limit,
    travel_of_chunk,
    with_rows,
    work_of_chunk,
)
from fedbilevel.engines.mean import WeightedMean, jit_conclude, merge
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
    """Runs devices in chunks, all devices of a chunk at once.

    Memory is bounded by the chunk, not by the number of devices.

    Attributes:
        chunk_size: devices in a chunk; by default as many as share the cache.

    Example:
        >>> from fedbilevel import Simulation
        >>> Simulation(chunk_size=64)
        Simulation(chunk_size=64)
    """

    chunk_size: int | None = None

    def __post_init__(self) -> None:
        check_chunk_size("Simulation", self.chunk_size)

    def example_device(self, device_count: int) -> int:
        """Return the first: all data are here."""
        return 0

    def private_states(self, private: Private, device_count: int) -> PyTree:
        """Return every device's, alike at first."""
        return replicate(private, device_count)

    def begin(self, job: Job, state: RunState) -> tuple[Job, RunState]:
        """Return both as they are."""
        return job, state

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""
        # Of the usual cohort: a round of another size reuses the program.
        size = chunk_size(job, reference, self.chunk_size, job.cohort_size)
        server, private = state
        stateful = bool(jax.tree.leaves(private))
        program: Any = {"problem": job.problem, "reference": reference}
        now = Moment(*map(np.int32, moment))
        total: WeightedMean | None = None
        counted = []

        def work(chunk: Participants) -> tuple[Any, ...]:
            return (
                job.algorithm,
                server,
                _rows(private, chunk.devices) if stateful else private,
                job.devices.cohort(chunk.devices),
                chunk.devices,
                chunk.weights,
                job.key,
                now,
                job.limits,
            )

        chunks, reach = list(_chunks(participants, size)), None
        limit = travel_limit(job, reference)
        if len(chunks) > 1 and limit is not None:
            seen = [_travel(*work(chunk), **program) for chunk in chunks]
            reach = reach_among(seen, limit)
        for chunk in chunks:
            mean, kept, who = _work(*work(chunk), reach=reach, **program)
            counted.append(who)
            if stateful:
                private = _with_rows(private, chunk.devices, who, kept)
            total = mean if total is None else _merge(total, mean)
        assert total is not None, "a round has at least one participant"
        server, dispersion = jit_conclude(
            job.algorithm, server, total, job.key, now, **program
        )
        return RunState(server, private), Report(
            participants.devices,
            participants.weights > 0,
            tuple(counted),
            total.info,
            dispersion,
        )

    def rounds_at_once(self, job: Job) -> int:
        """Return how many rounds fit into a call; 0 if one has several chunks."""
        if type(self).exchange is not Simulation.exchange:
            # A subclass with its own exchange expects every exchange to call it.
            return 0
        sizes = [
            chunk_size(job, reference, self.chunk_size, job.cohort_size)
            for reference in job.phases
        ]
        whole = job.devices.in_memory and min(sizes) == job.cohort_size
        return block_capacity(job) if whole else 0

    def rounds(
        self,
        job: Job,
        first: int,
        state: RunState,
        participants: Sequence[Participants],
    ) -> Block:
        """Carry out several rounds in one compiled call."""
        return run_block(job, first, state, participants)


def _chunks(participants: Participants, size: int) -> Iterator[Participants]:
    """Deal participants into chunks, the last filled up with weightless ones."""
    # A filler repeats a real device, so that it can add no numbers of its own.
    filler = -len(participants.devices) % size
    devices = participants.devices.astype(np.int32)
    devices = np.concatenate([devices, np.repeat(devices[-1:], filler)])
    weights = np.concatenate([participants.weights, np.zeros(filler)])
    for first in range(0, len(devices), size):
        yield Participants(devices[first : first + size], weights[first : first + size])


_work = jax.jit(work_of_chunk, static_argnames=("problem", "reference"))
_travel = jax.jit(travel_of_chunk, static_argnames=("problem", "reference"))
_merge = jax.jit(merge)
_rows = jax.jit(rows_of)
# The old state is given up, so that a chunk's rows are written in place: otherwise each
# chunk would copy the private state of every enrolled device.
_with_rows = jax.jit(with_rows, donate_argnames="private")
