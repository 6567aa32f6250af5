"""Simulation: any number of devices in one process, a compiled chunk at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.algorithms.protocol import Carry, FederatedAlgorithm, Private, Server
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
        working_bytes = job.costs[reference].working_bytes
        most = self.chunk_size or max(1, CHUNK_BYTES // max(1, working_bytes))
        server, private = state
        total: WeightedMean | None = None
        for chunk in _chunks(participants, most):
            mean, private = _work(
                job.algorithm,
                server,
                private,
                job.devices.cohort(chunk.devices),
                *chunk,
                job.key,
                Moment(*map(np.int32, moment)),
                problem=job.problem,
                reference=reference,
            )
            total = mean if total is None else _merge(total, mean)
        server, report = _conclude(
            job.algorithm, server, total, problem=job.problem, reference=reference
        )
        return RunState(server, private), report


def _chunks(participants: Participants, most: int) -> Iterator[Participants]:
    """Deal participants into equal chunks, the last filled up with weightless ones."""
    count = len(participants.devices)
    chunks = -(-count // most)
    size = -(-count // chunks)
    # A filler repeats a real device, so that it can add no numbers of its own.
    filler = chunks * size - count
    devices = np.pad(participants.devices.astype(np.int32), (0, filler), mode="edge")
    weights = np.pad(participants.weights, (0, filler))
    for first in range(0, len(devices), size):
        yield Participants(devices[first : first + size], weights[first : first + size])


@partial(jax.jit, static_argnames=("problem", "reference"))
def _work(
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
    phase = reference.of(algorithm, problem)
    keys = jax.vmap(device_key, in_axes=(None, None, 0))(key, moment, devices)
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))

    def step(carry: Carry, number: Int[Array, ""]) -> tuple[Carry, None]:
        return jax.vmap(phase.step, in_axes=(0, COHORT_AXES, 0))(
            carry, data, fold(keys, number + 1)
        ), None

    mine = jax.tree.map(lambda leaf: leaf[devices], private)
    carry = jax.vmap(
        phase.start, in_axes=(None, 0, COHORT_AXES, 0), axis_size=len(keys)
    )(phase.broadcast(server), mine, data, fold(keys, 0))
    carry, _ = jax.lax.scan(step, carry, jnp.arange(phase.steps))
    uplinks, kept, infos = jax.vmap(phase.finish)(carry)

    def keep(leaf: Array, new: Array) -> Array:
        # A filler's row lies beyond the end, where a write is dropped.
        rows = jnp.where(weights > 0, devices, len(leaf))
        return leaf.at[rows].set(new, mode="drop")

    return (
        stacked_mean(uplinks, infos, weights),
        jax.tree.map(keep, private, kept),
    )


_merge = jax.jit(merge)


@partial(jax.jit, static_argnames=("problem", "reference"))
def _conclude(
    algorithm: FederatedAlgorithm,
    server: Server,
    mean: WeightedMean,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Server, Report]:
    return conclude(reference.of(algorithm, problem), server, mean)
