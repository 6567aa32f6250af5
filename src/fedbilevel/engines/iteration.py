"""The main loop of a run: calls of the engine, screening, checkpoints."""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.protocol import Server
from fedbilevel.engines.checkpoints.options import Progress
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import ExclusionCounts
from fedbilevel.engines.preparation import Prepared, participants_of
from fedbilevel.engines.protocol import (
    Block,
    BlockEngine,
    Engine,
    Job,
    Moment,
    Participants,
    PrivateEngine,
    Report,
    RunState,
)
from fedbilevel.engines.round import Round
from fedbilevel.engines.screening import NoUploadsError, inspect
from fedbilevel.engines.spending import Spending
from fedbilevel.plurals import count_noun

logger = logging.getLogger("fedbilevel")
MOST_PENDING = 2
"""The number of rounds that may run before the uploads of the first are inspected."""
CALL_SECONDS = 0.5
"""The intended duration of a call of several rounds, which cannot be interrupted."""


class _Pending(NamedTuple):
    """A round whose uploads have not been inspected."""

    number: int
    participants: Participants
    reports: Callable[[], tuple[Report, ...]]
    notices: Callable[[], Mapping[str, int]]


class _CallResult(NamedTuple):
    """The result of a call of one or more rounds."""

    state: RunState
    reports: tuple[Report, ...]
    costs: Costs
    pending: list[_Pending]


def iterate(
    prepared: Prepared, progress: Progress, store: Store | None, every: int
) -> Generator[Round, None, None]:
    """Run the remaining rounds, and yield the last round of each call of the engine.

    A call ends at the first round, at every `every`-th round, at a checkpoint and at
    the last round. A `BlockEngine` runs the rounds between them in few calls of about
    half a second at most. The end of a call has no influence on numbers: the same
    program computes all rounds except an opening round.
    """
    # A run that a script leaves unfinished is closed while Python exits. The names of
    # modules are then None; local ones are not.
    is_finalizing = sys.is_finalizing
    spec = prepared.spec
    engine, spending = spec.engine, prepared.spending
    repeated = repeated_means(prepared, progress.rounds)
    rounds = affordable_rounds(prepared, repeated)
    if rounds < spec.rounds:
        assert spending is not None
        logger.warning(
            "The budget epsilon=%g allows %d of %d rounds; the run ends after them.",
            spending.budget,
            rounds,
            spec.rounds,
        )
    job, state = engine.begin(prepared.job, progress.state)
    spent, history = progress.costs, progress.history
    counts = counts_of(progress, job.devices.device_count)
    pending: deque[_Pending] = deque()
    noticed = _notices(progress.state.server)
    capacity = 0
    if every > 1 and isinstance(engine, BlockEngine):
        capacity = engine.rounds_at_once(job)
    block_engine = engine if capacity and isinstance(engine, BlockEngine) else None
    at_once = 1

    def inspect_pending(most: int) -> None:
        nonlocal noticed
        while len(pending) > most:
            item = pending.popleft()
            present = item.participants.present
            reports = item.reports()
            inspect(item.number, reports, present, counts, prepared.job.limits)
            _require_noise(item.number, reports, spending)
            noticed = _warn(item.number, noticed, item.notices())

    def save() -> None:
        assert store is not None
        store.save(Progress(number, state, spent, history, counts.notes()))

    participants: Participants | None = None
    number = progress.rounds
    try:
        while number < rounds:
            start = time.monotonic()
            stops = [every, rounds if store is None else store.options.every]
            ahead = min(at_once, rounds - number, *(n - number % n for n in stops))
            cohorts = _choose(prepared, range(number, number + ahead), participants)
            participants = cohorts[-1]
            if block_engine is None or not _fits(job, number, cohorts[0]):
                call = _run_round(engine, job, number, state, cohorts[0])
            else:
                call = _run_block(block_engine, job, number, state, cohorts)
                jax.block_until_ready(call.state.server)
            state = call.state
            spent = spent.plus(call.costs)
            pending.extend(call.pending)
            number += len(call.pending)
            # The first call compiles and has one round; later calls double in length.
            pace = len(call.pending) / max(time.monotonic() - start, 1e-9)
            at_once = max(1, min(2 * at_once, capacity, int(CALL_SECONDS * pace)))
            due = store is not None and store.due(number, rounds)
            # Inspection waits for its round, while later ones could be computed.
            inspect_pending(0 if due or number == rounds else MOST_PENDING)
            snapshot = counts.snapshot()
            result = Round(
                number - 1,
                state,
                call.reports,
                spent,
                history,
                snapshot,
                spending,
                repeated,
                is_last=number == rounds,
            )
            if store is not None and due:
                history = *history, *store.options.metrics_of(result)
                result = result._replace(history=history)
                save()
            yield result
    except GeneratorExit:
        # JAX cannot compute while Python exits.
        if is_finalizing():
            raise
        # A caller that stops early still gets the warnings of the last rounds, and a
        # checkpoint of the last round.
        try:
            inspect_pending(0)
        except NoUploadsError as error:
            logger.warning("%s", error)
        else:
            if store is not None and not due:
                save()
        raise
    except NoUploadsError as error:
        if store is None:
            raise
        store.close()
        newest = (
            f"The newest checkpoint has {count_noun(store.rounds[-1], 'round')}."
            if store.rounds
            else "There is no checkpoint."
        )
        raise NoUploadsError(f"{error} {newest}") from None
    finally:
        if store is not None and not is_finalizing():
            store.close()


def _require_noise(
    number: int, reports: tuple[Report, ...], spending: Spending | None
) -> None:
    """Raise if fewer devices than planned have added their noise."""
    if spending is None or spending.fewest == 1:
        return
    for exchange, report in enumerate(reports):
        count = len(report.contributors)
        if count < spending.fewest:
            raise NoUploadsError(
                f"Round {number}, exchange {exchange}: {count} of "
                f"{spending.fewest} uploads of DeviceNoise were accepted, so the mean "
                "has less noise than ε is computed for. Find out why devices are "
                "excluded, or lower DeviceNoise.devices."
            )


def repeated_means(prepared: Prepared, rounds: int) -> int:
    """Return the number of noised exchanges that a run will have computed twice.

    Args:
        prepared: the run.
        rounds: number of rounds of the checkpoint from which it resumes.
    """
    spending = prepared.spending
    if spending is None:
        return 0
    engine = prepared.spec.engine
    assert isinstance(engine, PrivateEngine), "noise requires it"
    return max(0, engine.noised_means - spending.exchanges_after(rounds))


def affordable_rounds(prepared: Prepared, repeated: int) -> int:
    """Return the number of rounds that the run may have within its budget.

    Raises:
        ValueError: if the budget allows no round.
    """
    spec, spending = prepared.spec, prepared.spending
    if spending is None:
        return spec.rounds
    rounds = spending.rounds_within(spec.rounds, repeated)
    if not rounds:
        epsilon = spending.epsilon_after(1, repeated)
        raise ValueError(
            f"The budget epsilon={spending.budget:g} allows no round: the first spends "
            f"{epsilon:.3g}. Raise the multiplier of the noise, or epsilon."
        )
    return rounds


def counts_of(progress: Progress, device_count: int) -> ExclusionCounts:
    """Return the exclusion counts of a checkpoint.

    Example:
        >>> counts_of(Progress(0, RunState(1.0, ()), Costs(), ()), 3).device_count
        3
    """
    if progress.exclusions is None:
        return ExclusionCounts(device_count)
    return ExclusionCounts.read(progress.exclusions, device_count)


def _choose(
    prepared: Prepared, numbers: range, former: Participants | None
) -> list[Participants]:
    """Return the participants of as many of these rounds as fit into one call."""
    spec, job = prepared.spec, prepared.job
    cohorts: list[Participants] = []
    for number in numbers:
        try:
            devices = np.asarray(
                spec.participation(
                    prepared.participation_seed, number, job.devices.device_count
                )
            )
            if former is None or not np.array_equal(former.devices, devices):
                former = participants_of(number, devices, prepared.weights)
        except Exception:
            # The next call raises it, after earlier rounds and their checkpoints.
            if cohorts:
                return cohorts
            raise
        if cohorts and not _fits(job, number, former):
            return cohorts
        cohorts.append(former)
    return cohorts


def _fits(job: Job, number: int, participants: Participants) -> bool:
    """Return whether a `BlockEngine` may run a round."""
    usual = number > 0 or job.opening == job.phases
    return usual and len(participants.devices) <= job.cohort_size


def _run_round(
    engine: Engine, job: Job, number: int, state: RunState, participants: Participants
) -> _CallResult:
    """Run the exchanges of a round."""
    report_list, spent = [], Costs()
    for exchange, reference in enumerate(job.phases if number else job.opening):
        state, report = engine.exchange(
            job, reference, Moment(number, exchange), state, participants
        )
        report_list.append(report)
        # A device whose upload is excluded has the same costs as any other.
        spent = spent.plus(job.costs[reference].times(int(report.present.sum())))
    reports, server = tuple(report_list), state.server
    item = _Pending(number, participants, lambda: reports, lambda: _notices(server))
    return _CallResult(state, reports, spent, [item])


def _run_block(
    engine: BlockEngine,
    job: Job,
    first: int,
    state: RunState,
    cohorts: Sequence[Participants],
) -> _CallResult:
    """Run consecutive rounds in one call."""
    block = engine.rounds(job, first, state, cohorts)
    spent, pending = Costs(), []
    for row, participants in enumerate(cohorts):
        for reference in job.phases:
            count = len(participants.present)
            spent = spent.plus(job.costs[reference].times(count))
        reports = partial(_reports, block, row, participants)
        notices = partial(_notices_in, block, row)
        pending.append(_Pending(first + row, participants, reports, notices))
    return _CallResult(block.state, block.reports, spent, pending)


def _reports(block: Block, row: int, participants: Participants) -> tuple[Report, ...]:
    """Return reports of a round with the mask `counted` alone."""
    counted: Array | np.ndarray = block.counted
    if not isinstance(counted, jax.core.Tracer):
        counted = np.asarray(counted)
    present = participants.weights > 0
    return tuple(
        Report(participants.devices, present, (mask,), {}, ()) for mask in counted[row]
    )


def _notices_in(block: Block, row: int) -> Mapping[str, int]:
    return {
        message: int(np.asarray(numbers)[row])
        for message, numbers in block.notices.items()
    }


def _notices(server: Server) -> Mapping[str, int]:
    return {message: int(count) for message, count in notices_of(server).items()}


def _warn(
    number: int, before: Mapping[str, int], after: Mapping[str, int]
) -> Mapping[str, int]:
    for message, count in after.items():
        if count > before.get(message, 0):
            logger.warning("Round %d: %s", number, message)
    return after
