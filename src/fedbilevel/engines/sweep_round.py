"""A round of a run as a function of arrays, for programs that hold many runs."""

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
    """Carries out one round; every argument but `references` may be traced."""

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
        """Return the state after the round of this number."""


def round_program(
    problem: BilevelProblem,
    cohort: StoredData,
    count: int,
    limits: Limits = NO_LIMITS,
    every_upload: bool = False,
) -> RoundProgram:
    """Return a round of all devices at once, absent ones with a weight of zero.

    Args:
        problem: the two losses.
        cohort: the data of all devices.
        count: how many devices there are.
        limits: that uploads are held to; any finite one counts by default.
        every_upload: whether the state becomes NaN where a single upload is excluded;
            by default where all are.

    Example:
        >>> round_program.__name__
        'round_program'
    """
    devices = jnp.arange(count)

    def one_exchange(
        algorithm: FederatedAlgorithm,
        reference: PhaseReference,
        state: RunState,
        key: RandomKey,
        moment: Moment,
        weights: Float[Array, "devices"],
    ) -> RunState:
        mean, kept, counted = work_of_chunk(
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
        server, _ = conclude(phase, state.server, mean, server_key(key, moment))
        # Where a run would stop, this goes on, and its numbers must say so.
        good = mean.weight > 0
        if every_upload:
            good = jnp.all(counted | (weights == 0))
        server = jax.tree.map(partial(_unless_lost, good), server)
        return RunState(server, _written(counted, kept, state.private))

    def one_round(
        algorithm: FederatedAlgorithm,
        references: tuple[PhaseReference, ...],
        state: RunState,
        key: RandomKey,
        number: Int[Array, ""],
        weights: Float[Array, "devices"],
        /,
    ) -> RunState:
        for reference, places in stretches(references):

            def exchange(
                state: RunState,
                place: Int[Array, ""],
                reference: PhaseReference = reference,
            ) -> tuple[RunState, None]:
                moment = Moment(number, place)
                return one_exchange(
                    algorithm, reference, state, key, moment, weights
                ), None

            state, _ = jax.lax.scan(exchange, state, jnp.asarray(places))
        return state

    return one_round


def stretches(
    references: tuple[PhaseReference, ...],
) -> list[tuple[PhaseReference, list[int]]]:
    """Return the phases of a round with their places, repeated ones together.

    A phase that is repeated is a loop in the program, not so many copies of itself.

    Example:
        >>> one, other = PhaseReference(False, 0), PhaseReference(False, 1)
        >>> [places for _, places in stretches((one, one, other))]
        [[0, 1], [2]]
    """
    alike = groupby(enumerate(references), key=lambda pair: pair[1])
    return [(reference, [place for place, _ in pairs]) for reference, pairs in alike]


def _unless_lost(good: Bool[Array, ""], leaf: Array) -> Array:
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    return jnp.where(good, leaf, jnp.nan)


def _written(counted: Array, kept: Private, private: Private) -> Private:
    def write(new: Array, old: Array) -> Array:
        mask = counted.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(mask, new.astype(old.dtype), old)

    return jax.tree.map(write, kept, private)
