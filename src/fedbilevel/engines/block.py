"""Blocks: several rounds in one compiled call, if only the last is needed.

With 8 devices and batch size 1 a round takes 4 ms, and calling its programs from Python
takes a tenth of that. A block is one call for any number of rounds.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.protocol import Private
from fedbilevel.data.examples import COHORT_AXES, StoredData
from fedbilevel.engines.chunk import Chunk, rows_of, with_rows
from fedbilevel.engines.inputs import Inputs
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.protocol import (
    Block,
    Job,
    Moment,
    Participants,
    Report,
    RunState,
)
from fedbilevel.engines.round_program import ExchangeOutput, RoundProgram, run_round

MOST_ROUNDS = 64
"""The most rounds of a block: its call costs less than a hundredth of a small round."""
MOST_ENTRIES = 65_536
"""The most device slots of a block. Every call transfers all of them, used or not."""


class _Cohorts(NamedTuple):
    """The participants of the rounds of a block, with their data in the same order."""

    data: StoredData
    devices: Int[Array | np.ndarray, "rounds cohort"]
    weights: Float[Array | np.ndarray, "rounds cohort"]
    limits: Limits

    def of(self, row: Int[Array, ""], private: Private) -> Chunk:
        """Return the participants of a round, given the private states of all."""

        def select(axis: int | None, leaf: PyTree) -> PyTree:
            if axis is None:
                return leaf
            return jax.tree.map(
                lambda entries: entries.reshape(self.devices.shape)[row], leaf
            )

        data: StoredData = jax.tree.map(
            select, COHORT_AXES, self.data, is_leaf=lambda axis: axis is None
        )
        devices = self.devices[row]
        return Chunk(
            rows_of(private, devices), data, devices, self.weights[row], self.limits
        )


def block_capacity(job: Job) -> int:
    """Return the number of rounds that a block of a run has room for.

    It is the same in all calls, since it is a shape of the compiled program.
    """
    return max(1, min(MOST_ROUNDS, MOST_ENTRIES // job.cohort_size))


def run_block(
    job: Job, first: int, state: RunState, participants: Sequence[Participants]
) -> Block:
    """Run consecutive rounds, all devices of a round at once.

    The number of rounds is data: a shorter block runs the same program.

    Args:
        job: inputs of the run, with all devices' data in memory.
        first: number of the first round; above 0 if the opening round has other phases.
        state: state before the first round. The buffers of its private part are
            donated.
        participants: participants of each round, at most `Job.cohort_size` of them in
            each of at most `block_capacity` rounds.
    """
    shape = block_capacity(job), job.cohort_size
    devices, weights = np.empty(shape, np.int32), np.zeros(shape)
    for row, cohort in enumerate(participants):
        # Padding repeats a real device, so that it cannot introduce other numbers.
        devices[row] = cohort.devices[-1]
        devices[row, : len(cohort.devices)] = cohort.devices
        weights[row, : len(cohort.devices)] = cohort.weights
    devices[len(participants) :] = devices[0]
    state, outputs, counted, notices = _rounds(
        state.private,
        Inputs.of(job, state.server, Moment(first, 0)),
        _Cohorts(job.devices.cohort(devices.ravel()), devices, weights, job.limits),
        np.int32(len(participants)),
        program=RoundProgram(job.problem, job.phases),
    )
    last = participants[-1]
    present = last.weights > 0
    reports = tuple(
        Report(last.devices, present, (output.counted,), output.info, output.dispersion)
        for output in outputs
    )
    return Block(state, reports, counted, notices)


@partial(jax.jit, static_argnames="program", donate_argnames="private")
def _rounds(
    private: Private,
    inputs: Inputs,
    cohorts: _Cohorts,
    count: Int[Array, ""],
    *,
    program: RoundProgram,
) -> tuple[RunState, list[ExchangeOutput], Bool[Array, "rounds exchanges cohort"], Any]:
    first, _ = inputs.moment

    # jit traces it once, although it is used for its shapes and in the loop.
    @partial(jax.jit, inline=True)
    def round_of(
        row: Int[Array, ""], state: RunState
    ) -> tuple[RunState, list[ExchangeOutput]]:
        cohort = cohorts.of(row, state.private)
        after, outputs = run_round(
            inputs._replace(server=state.server, moment=Moment(first + row, 0)),
            cohort,
            program,
            # The spread takes a tenth of a short round, and only the last is reported.
            spread_wanted=row == count - 1,
        )
        # Padding repeats a device, and must not write its row.
        private = with_rows(
            state.private, cohort.devices, cohort.weights > 0, after.private
        )
        return RunState(after.server, private), outputs

    def body(row: Int[Array, ""], carry: Any) -> Any:
        state, _, counted, notices = carry
        state, outputs = round_of(row, state)
        masks = jnp.stack([output.counted for output in outputs])
        notices = jax.tree.map(
            lambda rows, value: rows.at[row].set(value),
            notices,
            notices_of(state.server),
        )
        return state, outputs, counted.at[row].set(masks), notices

    state = RunState(inputs.server, private)
    _, forms = jax.eval_shape(round_of, jnp.asarray(0, jnp.int32), state)
    rounds, cohort = cohorts.devices.shape
    empty = (
        state,
        jax.tree.map(lambda form: jnp.zeros(form.shape, form.dtype), forms),
        jnp.zeros((rounds, len(program.references), cohort), bool),
        jax.tree.map(
            lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype),
            notices_of(state.server),
        ),
    )
    result: tuple[RunState, list[ExchangeOutput], Array, Any] = jax.lax.fori_loop(
        jnp.zeros_like(count), count, body, empty
    )
    return result
