"""Simulation: any number of devices in one process, a compiled chunk at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.algorithms.protocol import (
    Carry,
    FederatedAlgorithm,
    Private,
    Server,
)
from fedbilevel.data.examples import COHORT_AXES, RandomKey, StoredData
from fedbilevel.engines.mean import WeightedMean, conclude, merge, stacked_mean
from fedbilevel.engines.protocol import (
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
    device_key,
)
from fedbilevel.mathematics.problem import BilevelProblem

CHUNK_BYTES = 1_500_000
"""What a chunk's devices hold at once: about a core's cache, where it ran fastest."""
LOADED_BYTES = 256_000_000
"""The most that is loaded at once of devices whose data come on demand."""


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
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(
                f"Simulation needs chunk_size at least 1, but it is {self.chunk_size}."
            )

    def exchange(
        self,
        job: Job,
        reference: PhaseReference,
        moment: Moment,
        state: RunState,
        participants: Participants,
    ) -> tuple[RunState, Report]:
        """Return the state after the exchange, and its report."""
        most = self.chunk_size or _default_chunk_size(job, reference)
        # Equal chunks of the usual cohort: a round of another size reuses the program.
        size = -(-job.cohort_size // -(-job.cohort_size // most))
        server, private = state
        stateful = bool(jax.tree.leaves(private))
        program: Any = {"problem": job.problem, "reference": reference}
        total: WeightedMean | None = None
        for chunk in _chunks(participants, size):
            mean, kept = _work(
                job.algorithm,
                server,
                _rows(private, chunk.devices) if stateful else private,
                job.devices.cohort(chunk.devices),
                *chunk,
                job.key,
                Moment(*map(np.int32, moment)),
                **program,
            )
            if stateful:
                private = _with_rows(private, *chunk, kept)
            total = mean if total is None else _merge(total, mean)
        assert total is not None, "a round has at least one participant"
        server, dispersion = _conclude(job.algorithm, server, total, **program)
        return RunState(server, private), Report(
            participants.present, total.info, dispersion
        )


def _default_chunk_size(job: Job, reference: PhaseReference) -> int:
    by_work = CHUNK_BYTES // max(1, job.costs[reference].working_bytes)
    by_data = LOADED_BYTES // max(1, job.loaded_bytes)
    return max(1, min(by_work, by_data))


def _chunks(participants: Participants, size: int) -> Iterator[Participants]:
    """Deal participants into chunks, the last filled up with weightless ones."""
    # A filler repeats a real device, so that it can add no numbers of its own.
    filler = -len(participants.devices) % size
    devices = participants.devices.astype(np.int32)
    devices = np.concatenate([devices, np.repeat(devices[-1:], filler)])
    weights = np.concatenate([participants.weights, np.zeros(filler)])
    for first in range(0, len(devices), size):
        yield Participants(devices[first : first + size], weights[first : first + size])


def work_of_chunk(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    devices: Int[Array, "chunk"],
    weights: Float[Array, "chunk"],
    key: RandomKey,
    moment: Moment,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[WeightedMean, Private]:
    """Carry out one exchange with a chunk of devices, all of them at once.

    Example:
        >>> from fedbilevel.engines.simulation import work_of_chunk
        >>> work_of_chunk.__name__
        'work_of_chunk'
    """
    phase = reference.of(algorithm, problem)
    keys = jax.vmap(device_key, in_axes=(None, None, 0))(key, moment, devices)
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))

    def step(carry: Carry, number: Int[Array, ""]) -> tuple[Carry, None]:
        return jax.vmap(phase.step, in_axes=(0, COHORT_AXES, 0))(
            carry, data, fold(keys, number + 1)
        ), None

    downlink = phase.broadcast(server)
    carry = jax.vmap(
        phase.start, in_axes=(None, 0, COHORT_AXES, 0), axis_size=len(keys)
    )(downlink, private, data, fold(keys, 0))
    carry, _ = jax.lax.scan(step, carry, jnp.arange(phase.steps))
    uplinks, kept, infos = jax.vmap(phase.finish, in_axes=(0, None, 0))(
        carry, downlink, fold(keys, phase.steps + 1)
    )
    return stacked_mean(jax.vmap(phase.receive)(uplinks), infos, weights), kept


_work = jax.jit(work_of_chunk, static_argnames=("problem", "reference"))
_merge = jax.jit(merge)


@partial(jax.jit, static_argnames=("problem", "reference"))
def _conclude(
    algorithm: FederatedAlgorithm,
    server: Server,
    mean: WeightedMean,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Server, PyTree]:
    return conclude(reference.of(algorithm, problem), server, mean)


@jax.jit
def _rows(private: Private, devices: Int[Array, "chunk"]) -> Private:
    return jax.tree.map(lambda leaf: leaf[devices], private)


# The old state is given up, so that a chunk's rows are written in place: otherwise each
# chunk would copy the private state of every enrolled device.
@partial(jax.jit, donate_argnames="private")
def _with_rows(
    private: Private,
    devices: Int[Array, "chunk"],
    weights: Float[Array, "chunk"],
    rows: Private,
) -> Private:
    def write(leaf: Array, new: Array) -> Array:
        # A filler's row lies beyond the end, where a write is dropped.
        places = jnp.where(weights > 0, devices, len(leaf))
        return leaf.at[places].set(new, mode="drop")

    return jax.tree.map(write, private, rows)
