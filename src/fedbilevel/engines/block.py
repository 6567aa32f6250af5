"""Several rounds in one compiled call, for rounds that nobody looks at in between.

With 8 devices and batch size 1 a round takes 4 ms, and calling its programs from Python
takes a tenth of that. A block is one call, however many rounds it has.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

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
"""Rounds in a block: calling it then costs less than a hundredth of a small round."""
MOST_ENTRIES = 65_536
"""Places for devices in a block. All are sent in every call, used or not."""


class _Told(NamedTuple):
    counted: Bool[Array, "cohort"]
    info: Info
    dispersion: PyTree


def block_capacity(job: Job) -> int:
    """Return how many rounds a block of a run has room for.

    The same in all calls, since it is a shape of the compiled program.

    Example:
        >>> block_capacity.__name__
        'block_capacity'
    """
    return max(1, min(MOST_ROUNDS, MOST_ENTRIES // job.cohort_size))


def run_block(
    job: Job, first: int, state: RunState, participants: Sequence[Participants]
) -> Block:
    """Carry out consecutive rounds, all devices of a round at once.

    How many rounds there are is data: a shorter block runs the same program.

    Args:
        job: with all devices' data in memory.
        first: the number of the first round; later than the opening round, if that has
            phases of its own.
        state: what it begins with. Its private part is given up.
        participants: of each round, no more than usual; at most `block_capacity`.

    Example:
        >>> run_block.__name__
        'run_block'
    """
    shape = block_capacity(job), job.cohort_size
    devices, weights = np.empty(shape, np.int32), np.zeros(shape)
    for row, chosen in enumerate(participants):
        # A filler repeats a real device, so that it can add no numbers of its own.
        devices[row] = chosen.devices[-1]
        devices[row, : len(chosen.devices)] = chosen.devices
        weights[row, : len(chosen.devices)] = chosen.weights
    devices[len(participants) :] = devices[0]
    state, told, counted, setbacks = _rounds(
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
    reports = tuple(
        Report(last.devices, last.weights > 0, (one.counted,), one.info, one.dispersion)
        for one in told
    )
    return Block(state, reports, counted, setbacks)


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
) -> tuple[RunState, list[_Told], Bool[Array, "rounds exchanges cohort"], Any]:
    def one_exchange(
        place: Int[Array, ""],
        moment: Moment,
        state: RunState,
        reference: PhaseReference,
    ) -> tuple[RunState, _Told]:
        own = devices[place]
        mean, kept, counted = work_of_chunk(
            algorithm,
            state.server,
            rows_of(state.private, own),
            _cohort_of(data, place, devices.shape),
            own,
            weights[place],
            key,
            moment,
            limits,
            problem=problem,
            reference=reference,
            # Nobody asks for that of the others, and it is a tenth of a short round.
            spread_wanted=place == count - 1,
        )
        phase = reference.of(algorithm, problem)
        server, dispersion = conclude(
            phase, state.server, mean, server_key(key, moment)
        )
        private = with_rows(state.private, own, counted, kept)
        return RunState(server, private), _Told(counted, mean.info, dispersion)

    # Compiled in itself so that it is traced once: for its shapes, and in the loop.
    @partial(jax.jit, inline=True)
    def one_round(
        place: Int[Array, ""], state: RunState
    ) -> tuple[RunState, list[_Told]]:
        told: list[_Told] = []
        for reference, exchanges in stretches(references):

            def exchange(
                state: RunState,
                number: Int[Array, ""],
                reference: PhaseReference = reference,
            ) -> tuple[RunState, _Told]:
                return one_exchange(
                    place, Moment(first + place, number), state, reference
                )

            numbers = jnp.asarray(exchanges, jnp.int32)
            if len(exchanges) == 1:
                state, one = exchange(state, numbers[0])
                told.append(one)
                continue
            state, several = jax.lax.scan(exchange, state, numbers)
            told += [_row(several, row) for row in range(len(exchanges))]
        return state, told

    def later(place: Int[Array, ""], carry: Any) -> Any:
        state, _, counted, setbacks = carry
        state, told = one_round(place, state)
        counted = counted.at[place].set(jnp.stack([one.counted for one in told]))
        setbacks = jax.tree.map(
            lambda all_, now: all_.at[place].set(now), setbacks, _setbacks(state)
        )
        return state, told, counted, setbacks

    state = RunState(server, private)
    _, forms = jax.eval_shape(one_round, jnp.asarray(0, jnp.int32), state)
    rounds, cohort = devices.shape
    empty = (
        state,
        jax.tree.map(lambda form: jnp.zeros(form.shape, form.dtype), forms),
        jnp.zeros((rounds, len(references), cohort), bool),
        jax.tree.map(
            lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype), _setbacks(state)
        ),
    )
    found: tuple[RunState, list[_Told], Array, Any] = jax.lax.fori_loop(
        jnp.zeros_like(count), count, later, empty
    )
    return found


def _setbacks(state: RunState) -> Any:
    """Return how often an algorithm that can step back did so; () if it cannot."""
    return getattr(state.server, "setbacks", ())


def _cohort_of(
    data: StoredData, place: Int[Array, ""], shape: tuple[int, ...]
) -> StoredData:
    """Return one round's data of what is held of the devices of all rounds."""

    def own(axis: int | None, leaf: PyTree) -> PyTree:
        return leaf if axis is None else leaf.reshape(shape)[place]

    cohort: StoredData = jax.tree.map(
        own, COHORT_AXES, data, is_leaf=lambda axis: axis is None
    )
    return cohort


def _row(stacked: _Told, row: int) -> _Told:
    told: _Told = jax.tree.map(lambda leaf: leaf[row], stacked)
    return told
