"""The rounds of a prepared run, one call of the engine after another."""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

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
    Report,
    RunState,
)
from fedbilevel.engines.round import Round
from fedbilevel.engines.screening import NoUploadsError, inspect

logger = logging.getLogger("fedbilevel")
UNSEEN = 2
"""Rounds under way before the uploads of the first are looked at."""
CALL_SECONDS = 0.5
"""About the longest that a call of several rounds takes: it cannot be interrupted."""


class _Unseen(NamedTuple):
    """A round whose uploads have not been looked at."""

    number: int
    participants: Participants
    reports: Callable[[], tuple[Report, ...]]
    setbacks: Callable[[], int]


class _Called(NamedTuple):
    """What a call of one or more rounds returned."""

    state: RunState
    reports: tuple[Report, ...]
    costs: Costs
    unseen: list[_Unseen]


def iterate(
    prepared: Prepared, progress: Progress, store: Store | None, every: int
) -> Generator[Round, None, None]:
    """Run the rounds that are missing, and yield a round at the end of each call.

    The first round, every `every`-th, those with a checkpoint and the last are the ends
    of calls. An engine that can (`BlockEngine`) carries out the rounds between them in
    few calls, each of about half a second at most. Where a call ends has no influence
    on numbers: all rounds but an opening one are then computed by the same program.

    Example:
        >>> iterate.__name__
        'iterate'
    """
    spec = prepared.spec
    rounds, engine = spec.rounds, spec.engine
    job, state = engine.begin(prepared.job, progress.state)
    spent, history = progress.costs, progress.history
    counts = counts_of(progress, job.devices.device_count)
    unseen: deque[_Unseen] = deque()
    setbacks = _setbacks(progress.state.server)
    capacity = 0
    if every > 1 and isinstance(engine, BlockEngine):
        capacity = engine.rounds_at_once(job)
    block_engine = engine if capacity and isinstance(engine, BlockEngine) else None
    at_once = 1

    def look(at_most: int) -> None:
        nonlocal setbacks
        while len(unseen) > at_most:
            one = unseen.popleft()
            present = one.participants.present
            inspect(one.number, one.reports(), present, counts, prepared.job.limits)
            setbacks = _announced(one.number, setbacks, one.setbacks())

    def save() -> None:
        assert store is not None
        store.save(Progress(number, state, spent, history, counts.notes()))

    participants: Participants | None = None
    number = progress.rounds
    try:
        while number < rounds:
            began = time.monotonic()
            stops = [every, rounds if store is None else store.options.every]
            ahead = min(at_once, rounds - number, *(n - number % n for n in stops))
            chosen = _choose(prepared, range(number, number + ahead), participants)
            participants = chosen[-1]
            if block_engine is None or not _fits(job, number, chosen[0]):
                called = _one(engine, job, number, state, chosen[0])
            else:
                called = _several(block_engine, job, number, state, chosen)
                jax.block_until_ready(called.state.server)
            state = called.state
            spent = spent.plus(called.costs)
            unseen.extend(called.unseen)
            number += len(called.unseen)
            # The first call is of one round, since it compiles; then twice as many.
            pace = len(called.unseen) / max(time.monotonic() - began, 1e-9)
            at_once = max(1, min(2 * at_once, capacity, int(CALL_SECONDS * pace)))
            due = store is not None and store.due(number, rounds)
            # Looking at a round waits for it, while later ones could be computed.
            look(0 if due or number == rounds else UNSEEN)
            counted = counts.snapshot()
            done = Round(number - 1, state, called.reports, spent, history, counted)
            if store is not None and due:
                history = *history, *store.options.numbers_of(done)
                done = done._replace(history=history)
                save()
            yield done
    except GeneratorExit:
        # Nothing can be computed while Python ends.
        if sys.is_finalizing():
            raise
        # Whoever leaves early is still told of the last rounds' uploads, and can resume
        # from where they left.
        try:
            look(0)
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
        kept = f"of {store.rounds[-1]} rounds" if store.rounds else "none"
        raise NoUploadsError(f"{error} The newest checkpoint: {kept}.") from None
    finally:
        if store is not None and not sys.is_finalizing():
            store.close()


def counts_of(progress: Progress, device_count: int) -> ExclusionCounts:
    """Return the exclusions that were counted until then.

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
    chosen: list[Participants] = []
    for number in numbers:
        try:
            devices = np.asarray(
                spec.participation(spec.seed, number, job.devices.device_count)
            )
            if former is None or not np.array_equal(former.devices, devices):
                former = participants_of(number, devices, prepared.weights)
        except Exception:
            # It is raised when the rounds before it are done, and their checkpoints.
            if chosen:
                return chosen
            raise
        if chosen and not _fits(job, number, former):
            return chosen
        chosen.append(former)
    return chosen


def _fits(job: Job, number: int, participants: Participants) -> bool:
    """Return whether a round may be one of a `BlockEngine`'s call."""
    usual = number > 0 or job.opening == job.phases
    return usual and len(participants.devices) <= job.cohort_size


def _one(
    engine: Engine, job: Job, number: int, state: RunState, participants: Participants
) -> _Called:
    """Carry out a round, one exchange after another."""
    reports, spent = [], Costs()
    for exchange, reference in enumerate(job.phases if number else job.opening):
        state, report = engine.exchange(
            job, reference, Moment(number, exchange), state, participants
        )
        reports.append(report)
        # A device whose upload is left out has spent as much as any other.
        spent = spent.plus(job.costs[reference].times(int(report.present.sum())))
    told, server = tuple(reports), state.server
    seen = _Unseen(number, participants, lambda: told, lambda: _setbacks(server))
    return _Called(state, told, spent, [seen])


def _several(
    engine: BlockEngine,
    job: Job,
    first: int,
    state: RunState,
    chosen: Sequence[Participants],
) -> _Called:
    """Carry out consecutive rounds in one call."""
    block = engine.rounds(job, first, state, chosen)
    spent, unseen = Costs(), []
    for place, participants in enumerate(chosen):
        for reference in job.phases:
            asked = len(participants.present)
            spent = spent.plus(job.costs[reference].times(asked))
        reports = partial(_reports, block, place, participants)
        setbacks = partial(_setbacks_in, block, place)
        unseen.append(_Unseen(first + place, participants, reports, setbacks))
    return _Called(block.state, block.reports, spent, unseen)


def _reports(
    block: Block, place: int, participants: Participants
) -> tuple[Report, ...]:
    """Return who counted in each exchange of a round, which is all that is kept."""
    counted: Array | np.ndarray = block.counted
    if not isinstance(counted, jax.core.Tracer):
        counted = np.asarray(counted)
    present = participants.weights > 0
    return tuple(
        Report(participants.devices, present, (who,), {}, ()) for who in counted[place]
    )


def _setbacks_in(block: Block, place: int) -> int:
    return (
        int(np.asarray(block.setbacks)[place])
        if not isinstance(block.setbacks, tuple)
        else 0
    )


def _setbacks(server: Server) -> int:
    """Return how often an algorithm that can step back did so; never if it cannot."""
    return int(getattr(server, "setbacks", 0))


def _announced(number: int, before: int, now: int) -> int:
    if now > before:
        logger.warning(
            "round %d: the upper loss or the local steps exploded; the run steps back "
            "to its last good state with all rates halved.",
            number,
        )
    return now
