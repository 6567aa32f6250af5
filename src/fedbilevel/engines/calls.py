"""Calls of an engine, each for one or more rounds of a run."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from fedbilevel.engines.costs import Costs
from fedbilevel.engines.inspection import FinishedRound, count_notices
from fedbilevel.engines.preparation import Prepared, participants_of
from fedbilevel.engines.protocol import (
    Block,
    BlockEngine,
    Job,
    Moment,
    Participants,
    Report,
    RunState,
)

CALL_SECONDS = 0.5
"""The intended duration of a call of several rounds, which cannot be interrupted."""


class Call(NamedTuple):
    """The result of a call of one or more rounds.

    Attributes:
        state: state after the last round.
        reports: reports of the exchanges of the last round.
        costs: costs of all rounds.
        rounds: the rounds, to be inspected.
    """

    state: RunState
    reports: tuple[Report, ...]
    costs: Costs
    rounds: list[FinishedRound]


class Pace(NamedTuple):
    """The number of rounds of the next call.

    The first call compiles and has one round; later calls double in length, up to about
    half a second.

    Attributes:
        capacity: most rounds of a call; 0 for single exchanges.
        at_once: rounds of the next call.

    Example:
        >>> Pace(capacity=20).after(1, seconds=0.01)
        Pace(capacity=20, at_once=2)
    """

    capacity: int
    at_once: int = 1

    def after(self, rounds: int, seconds: float) -> "Pace":
        """Return the pace after a call."""
        in_time = int(CALL_SECONDS * rounds / max(seconds, 1e-9))
        return Pace(
            self.capacity, max(1, min(2 * self.at_once, self.capacity, in_time))
        )


class Calls:
    """The calls of a run, which end where a caller needs the state.

    Args:
        prepared: the run.
        job: its constant inputs, on the engine's hardware.
        stops: numbers of rounds, at each multiple of which a call ends.
        is_block: True if calls may have several rounds.
    """

    def __init__(
        self, prepared: Prepared, job: Job, stops: Sequence[int], is_block: bool
    ) -> None:
        self._prepared, self._job, self._stops = prepared, job, stops
        engine = prepared.engine
        self._engine = engine if is_block and isinstance(engine, BlockEngine) else None
        self._pace = Pace(self._engine.rounds_at_once(job) if self._engine else 0)
        self._participants: Participants | None = None

    def run(self, number: int, state: RunState) -> Call:
        """Run the rounds from a number to the end of the call."""
        began = time.monotonic()
        ahead = min(self._pace.at_once, *(stop - number % stop for stop in self._stops))
        cohorts = self._choose(range(number, number + ahead))
        if self._engine and self._pace.capacity and self._fits(number, cohorts[0]):
            call = _run_block(self._engine, self._job, number, state, cohorts)
            jax.block_until_ready(call.state.server)
        else:
            call = self._run_round(number, state, cohorts[0])
        self._pace = self._pace.after(len(call.rounds), time.monotonic() - began)
        return call

    def _choose(self, numbers: range) -> list[Participants]:
        """Return the participants of as many of these rounds as fit into one call."""
        prepared = self._prepared
        cohorts: list[Participants] = []
        for number in numbers:
            try:
                devices = np.asarray(
                    prepared.participation(
                        prepared.participation_seed, number, len(prepared.weights)
                    )
                )
                chosen = self._participants
                if chosen is None or not np.array_equal(chosen.devices, devices):
                    chosen = participants_of(number, devices, prepared.weights)
            except Exception:
                # The next call raises it, after earlier rounds and their checkpoints.
                if cohorts:
                    return cohorts
                raise
            if cohorts and not self._fits(number, chosen):
                return cohorts
            cohorts.append(chosen)
            self._participants = chosen
        return cohorts

    def _fits(self, number: int, participants: Participants) -> bool:
        """Return whether a `BlockEngine` may run a round."""
        job = self._job
        usual = number > 0 or job.opening == job.phases
        return usual and len(participants.devices) <= job.cohort_size

    def _run_round(
        self, number: int, state: RunState, participants: Participants
    ) -> Call:
        """Run the exchanges of a round."""
        engine, job = self._prepared.engine, self._job
        report_list, spent = [], Costs()
        for exchange, reference in enumerate(job.phases if number else job.opening):
            state, report = engine.exchange(
                job, reference, Moment(number, exchange), state, participants
            )
            report_list.append(report)
            # A device whose upload is excluded has the same costs as any other.
            costs = report.costs or job.costs[reference]
            spent = spent.plus(costs.times(int(report.present.sum())))
        reports, server = tuple(report_list), state.server
        item = FinishedRound(
            number, participants, lambda: reports, partial(count_notices, server)
        )
        return Call(state, reports, spent, [item])


def _run_block(
    engine: BlockEngine,
    job: Job,
    first: int,
    state: RunState,
    cohorts: Sequence[Participants],
) -> Call:
    """Run consecutive rounds in one call."""
    block = engine.rounds(job, first, state, cohorts)
    spent, rounds = Costs(), []
    for row, participants in enumerate(cohorts):
        for reference in job.phases:
            count = len(participants.present)
            spent = spent.plus(job.costs[reference].times(count))
        reports = partial(_reports, block, row, participants)
        notices = partial(_notices, block, row)
        rounds.append(FinishedRound(first + row, participants, reports, notices))
    return Call(block.state, block.reports, spent, rounds)


def _reports(block: Block, row: int, participants: Participants) -> tuple[Report, ...]:
    """Return reports of a round with the mask `counted` alone."""
    counted: Array | np.ndarray = block.counted
    if not isinstance(counted, jax.core.Tracer):
        counted = np.asarray(counted)
    present = participants.weights > 0
    return tuple(
        Report(participants.devices, present, (mask,), {}, ()) for mask in counted[row]
    )


def _notices(block: Block, row: int) -> Mapping[str, int]:
    return {
        message: int(np.asarray(numbers)[row])
        for message, numbers in block.notices.items()
    }
