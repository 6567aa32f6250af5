"""A round as a function of arrays, for programs that run many rounds."""

from functools import partial
from itertools import groupby
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from fedbilevel.algorithms.protocol import Info, Private
from fedbilevel.engines.chunk import Chunk, work_of_chunk
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.mean import conclude
from fedbilevel.engines.protocol import Moment, PhaseReference, RunState, server_key
from fedbilevel.mathematics.problem import BilevelProblem


class RoundProgram(NamedTuple):
    """The static arguments of a compiled round.

    Attributes:
        problem: the two losses.
        references: phases of the round.
    """

    problem: BilevelProblem
    references: tuple[PhaseReference, ...]


class ExchangeOutput(NamedTuple):
    """The report of an exchange, as arrays.

    Attributes:
        counted: mask of the accepted uploads.
        info: mean of the values that devices reported.
        dispersion: weighted mean squared distance of uploads from their mean.
    """

    counted: Bool[Array, "cohort"]
    info: Info
    dispersion: PyTree


def run_round(
    inputs: Inputs,
    cohort: Chunk,
    program: RoundProgram,
    spread_wanted: Bool[Array, ""] | None = None,
) -> tuple[RunState, list[ExchangeOutput]]:
    """Run a round of some devices, all of them at once.

    Args:
        inputs: inputs of the first exchange of the round.
        cohort: participants of the round.
        program: problem and phases.
        spread_wanted: False to report 0 as the dispersion; by default it is computed.

    Returns:
        The state after the round, with the private states of the cohort, and the output
        of each exchange.
    """
    number, _ = inputs.moment

    def exchange(
        state: RunState, index: Int[Array, ""], reference: PhaseReference
    ) -> tuple[RunState, ExchangeOutput]:
        now = inputs._replace(server=state.server, moment=Moment(number, index))
        devices = cohort._replace(private=state.private)
        phase = PhaseProgram(program.problem, reference)
        mean, private, counted = work_of_chunk(
            now, devices, phase, spread_wanted=spread_wanted
        )
        server, dispersion = conclude(
            phase.of(inputs.algorithm),
            state.server,
            mean,
            server_key(inputs.key, now.moment),
            jnp.max(cohort.weights),
        )
        private = _select(counted, private, state.private)
        return RunState(server, private), ExchangeOutput(counted, mean.info, dispersion)

    state = RunState(inputs.server, cohort.private)
    outputs: list[ExchangeOutput] = []
    for reference, indices in stretches(program.references):
        step = partial(exchange, reference=reference)
        numbers = jnp.asarray(indices, jnp.int32)
        if len(indices) == 1:
            state, output = step(state, numbers[0])
            outputs.append(output)
            continue
        state, stacked = jax.lax.scan(step, state, numbers)
        outputs += [
            jax.tree.map(lambda leaf, row=row: leaf[row], stacked)
            for row in range(len(indices))
        ]
    return state, outputs


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


def _select(counted: Array, after: Private, before: Private) -> Private:
    def select(new: Array, old: Array) -> Array:
        mask = counted.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(mask, new.astype(old.dtype), old)

    return jax.tree.map(select, after, before)
