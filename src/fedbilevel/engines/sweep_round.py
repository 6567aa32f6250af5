"""A round of a run as a function of arrays, for programs with many runs."""

from functools import partial
from itertools import groupby
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.algorithms.protocol import FederatedAlgorithm, Private
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.chunk import work_of_chunk
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.mean import conclude
from fedbilevel.engines.protocol import Moment, PhaseReference, RunState, server_key
from fedbilevel.mathematics.problem import BilevelProblem


@runtime_checkable
class RoundProgram(Protocol):
    """A function that runs one round; all arguments but `references` may be traced."""

    def __call__(
        self,
        algorithm: FederatedAlgorithm,
        references: tuple[PhaseReference, ...],
        state: RunState,
        key: RandomKey,
        number: Int[Array, ""],
        weights: Float[Array, "devices"],
        /,
    ) -> RunState:
        """Return the state after round `number`."""


def round_program(
    problem: BilevelProblem,
    cohort: StoredData,
    count: int,
    limits: Limits = NO_LIMITS,
    every_upload: bool = False,
) -> RoundProgram:
    """Return a function that runs a round of all devices at once.

    Absent devices have weight zero.

    Args:
        problem: the two losses.
        cohort: data of all devices.
        count: number of devices.
        limits: limits on uploads; by default any finite upload is accepted.
        every_upload: True to set the state to NaN if any upload is excluded; by default
            only if all are.
    """
    devices = jnp.arange(count)

    def run_exchange(
        algorithm: FederatedAlgorithm,
        reference: PhaseReference,
        state: RunState,
        key: RandomKey,
        moment: Moment,
        weights: Float[Array, "devices"],
    ) -> RunState:
        mean, private, counted = work_of_chunk(
            algorithm,
            *state,
            cohort,
            devices,
            weights,
            key,
            moment,
            limits,
            problem=problem,
            reference=reference,
        )
        phase = reference.of(algorithm, problem)
        server, _ = conclude(
            phase, state.server, mean, server_key(key, moment), jnp.max(weights)
        )
        # A run would stop here; this program continues with NaN.
        valid = mean.weight > 0
        if every_upload:
            valid = jnp.all(counted | (weights == 0))
        server = jax.tree.map(partial(_nan_unless, valid), server)
        return RunState(server, _select(counted, private, state.private))

    def run_round(
        algorithm: FederatedAlgorithm,
        references: tuple[PhaseReference, ...],
        state: RunState,
        key: RandomKey,
        number: Int[Array, ""],
        weights: Float[Array, "devices"],
        /,
    ) -> RunState:
        for reference, exchanges in stretches(references):

            def exchange(
                state: RunState,
                index: Int[Array, ""],
                reference: PhaseReference = reference,
            ) -> tuple[RunState, None]:
                moment = Moment(number, index)
                return run_exchange(
                    algorithm, reference, state, key, moment, weights
                ), None

            state, _ = jax.lax.scan(exchange, state, jnp.asarray(exchanges))
        return state

    return run_round


def stretches(
    references: tuple[PhaseReference, ...],
) -> list[tuple[PhaseReference, list[int]]]:
    """Return the phases of a round with their positions, grouped by repetition.

    A repeated phase is a loop in the program, not several copies.

    Example:
        >>> first, second = PhaseReference(False, 0), PhaseReference(False, 1)
        >>> [positions for _, positions in stretches((first, first, second))]
        [[0, 1], [2]]
    """
    groups = groupby(enumerate(references), key=lambda pair: pair[1])
    return [(reference, [index for index, _ in pairs]) for reference, pairs in groups]


def _nan_unless(valid: Bool[Array, ""], leaf: Array) -> Array:
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    return jnp.where(valid, leaf, jnp.nan)


def _select(counted: Array, after: Private, before: Private) -> Private:
    def select(new: Array, old: Array) -> Array:
        mask = counted.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(mask, new.astype(old.dtype), old)

    return jax.tree.map(select, after, before)
