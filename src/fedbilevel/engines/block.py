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
from fedbilevel.algorithms.protocol import FederatedAlgorithm, Info, Private, Server
from fedbilevel.data.examples import COHORT_AXES, RandomKey, StoredData
from fedbilevel.engines.chunk import rows_of, with_rows, work_of_chunk
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import conclude
from fedbilevel.engines.protocol import (
    Block,
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
    server_key,
)
from fedbilevel.engines.sweep_round import stretches
from fedbilevel.mathematics.problem import BilevelProblem

MOST_ROUNDS = 64
"""The most rounds of a block: its call costs less than a hundredth of a small round."""
MOST_ENTRIES = 65_536
"""The most device slots of a block. Every call transfers all of them, used or not."""


class _Output(NamedTuple):
    counted: Bool[Array, "cohort"]
    info: Info
    dispersion: PyTree


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
        job.algorithm,
        state.server,
        state.private,
        job.devices.cohort(devices.ravel()),
        devices,
        weights,
        job.key,
        np.int32(first),
        np.int32(len(participants)),
        job.limits,
        problem=job.problem,
        references=job.phases,
    )
    last = participants[-1]
    present = last.weights > 0
    reports = tuple(
        Report(last.devices, present, (output.counted,), output.info, output.dispersion)
        for output in outputs
    )
    return Block(state, reports, counted, notices)


@partial(
    jax.jit, static_argnames=("problem", "references"), donate_argnames=("private",)
)
def _rounds(
    algorithm: FederatedAlgorithm,
    server: Server,
    private: Private,
    data: StoredData,
    devices: Int[Array, "rounds cohort"],
    weights: Float[Array, "rounds cohort"],
    key: RandomKey,
    first: Int[Array, ""],
    count: Int[Array, ""],
    limits: Limits,
    *,
    problem: BilevelProblem,
    references: tuple[PhaseReference, ...],
) -> tuple[RunState, list[_Output], Bool[Array, "rounds exchanges cohort"], Any]:
    def run_exchange(
        row: Int[Array, ""],
        moment: Moment,
        state: RunState,
        reference: PhaseReference,
    ) -> tuple[RunState, _Output]:
        cohort = devices[row]
        mean, states, counted = work_of_chunk(
            algorithm,
            state.server,
            rows_of(state.private, cohort),
            _cohort_of(data, row, devices.shape),
            cohort,
            weights[row],
            key,
            moment,
            limits,
            problem=problem,
            reference=reference,
            # The spread takes a tenth of a short round, and only the last is reported.
            spread_wanted=row == count - 1,
        )
        phase = reference.of(algorithm, problem)
        server, dispersion = conclude(
            phase, state.server, mean, server_key(key, moment), jnp.max(weights[row])
        )
        private = with_rows(state.private, cohort, counted, states)
        return RunState(server, private), _Output(counted, mean.info, dispersion)

    # jit traces it once, although it is used for its shapes and in the loop.
    @partial(jax.jit, inline=True)
    def run_round(
        row: Int[Array, ""], state: RunState
    ) -> tuple[RunState, list[_Output]]:
        outputs: list[_Output] = []
        for reference, exchanges in stretches(references):

            def exchange(
                state: RunState,
                number: Int[Array, ""],
                reference: PhaseReference = reference,
            ) -> tuple[RunState, _Output]:
                return run_exchange(row, Moment(first + row, number), state, reference)

            numbers = jnp.asarray(exchanges, jnp.int32)
            if len(exchanges) == 1:
                state, output = exchange(state, numbers[0])
                outputs.append(output)
                continue
            state, stacked = jax.lax.scan(exchange, state, numbers)
            outputs += [_output(stacked, index) for index in range(len(exchanges))]
        return state, outputs

    def body(row: Int[Array, ""], carry: Any) -> Any:
        state, _, counted, notices = carry
        state, outputs = run_round(row, state)
        masks = jnp.stack([output.counted for output in outputs])
        notices = jax.tree.map(
            lambda rows, value: rows.at[row].set(value),
            notices,
            notices_of(state.server),
        )
        return state, outputs, counted.at[row].set(masks), notices

    state = RunState(server, private)
    _, forms = jax.eval_shape(run_round, jnp.asarray(0, jnp.int32), state)
    rounds, cohort = devices.shape
    empty = (
        state,
        jax.tree.map(lambda form: jnp.zeros(form.shape, form.dtype), forms),
        jnp.zeros((rounds, len(references), cohort), bool),
        jax.tree.map(
            lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype),
            notices_of(state.server),
        ),
    )
    result: tuple[RunState, list[_Output], Array, Any] = jax.lax.fori_loop(
        jnp.zeros_like(count), count, body, empty
    )
    return result


def _cohort_of(
    data: StoredData, row: Int[Array, ""], shape: tuple[int, ...]
) -> StoredData:
    """Return the data of one round, from the data of all rounds of a block."""

    def select(axis: int | None, leaf: PyTree) -> PyTree:
        return leaf if axis is None else leaf.reshape(shape)[row]

    cohort: StoredData = jax.tree.map(
        select, COHORT_AXES, data, is_leaf=lambda axis: axis is None
    )
    return cohort


def _output(stacked: _Output, index: int) -> _Output:
    output: _Output = jax.tree.map(lambda leaf: leaf[index], stacked)
    return output
