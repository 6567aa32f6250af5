"""With any faults of replies: the correct mean of the valid ones, or an error."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import Limits, Run
from fedbilevel.engines.preparation import Prepared, participants_of
from fedbilevel.engines.protocol import Moment, Report, RunState
from fedbilevel.engines.run import prepare
from fedbilevel.federation import Exchange, Federation, NoQuorumError, Site
from tests.engines.federation import START
from tests.federation.alike import (
    NAMES,
    PRESENT,
    PROBLEM,
    WEIGHTS,
    ByHand,
    algorithm,
    sites,
)
from tests.federation.faults import ELSEWHERE, FATES, SILENT, Schedule
from tests.federation.sites import enrolled, federation
from tests.waiting import no_hang

AMONG = [
    "LocalBSGM",
    "two exchanges, private state",
    "FedBiO, private lower level",
]
SCHEDULES = 40
"""Schedules of a block: enough for every type of fault to happen."""


class Skipping:
    """A second implementation of the backoff: by the exchange of a device's return."""

    def __init__(self, quorum: int) -> None:
        self._quorum, self._now = quorum, 0
        self._missed: dict[str, float] = defaultdict(float)
        self._back: Counter[str] = Counter()

    def contacted(self) -> list[str]:
        contacted = [name for name in PRESENT if self._back[name] <= self._now]
        return contacted if len(contacted) >= self._quorum else list(PRESENT)

    def happened(self, contacted: list[str], counted: list[str]) -> None:
        self._now += 1
        for name in contacted:
            late = name not in counted
            self._missed[name] = self._missed[name] * (1 if late else 0.8) + late
            pause = min(64, (1 << int(self._missed[name])) // 2 - 1) if late else 0
            self._back[name] = self._now + pause


def check_record(
    record: Exchange, schedule: Schedule, skipping: Skipping, began: int, quorum: int
) -> list[str]:
    """Compare the server's record of an exchange with the faults; return who counts.

    Args:
        record: record of the server.
        schedule: faults of the run.
        skipping: backoff, which gives the devices that are skipped at first.
        began: number of requests before the exchange.
        quorum: quorum of the exchange; without it, skipped devices are contacted.
    """
    fates, *others = schedule.exchanges[began:]
    contacted = skipping.contacted()
    assert list(fates) == contacted
    counting = {name for name in contacted if fates[name][1].counts}
    spare = [name for name in PRESENT if name not in contacted]
    assert len(others) == (len(counting) < quorum and bool(spare))
    for more in others:
        assert list(more) == spare
        # A late reply to the first contacted may be in time for the second.
        late = {name for name, of in schedule.strays[began + 1] if of == began}
        counting |= {name for name in spare if more[name][1].counts}
        counting |= {name for name in late if fates[name][1].reason == SILENT}
        fates, contacted, spare = {**fates, **more}, contacted + spare, []
    strays = {name for arrived in schedule.strays[began:] for name, _ in arrived}
    assert record.skipped == spare
    counted = [name for name in PRESENT if name in counting]
    assert record.counted == counted
    assert set(record.excluded) == set(contacted) - set(counted)
    for name, output in record.excluded.items():
        reason = fates[name][1].reason
        if reason == SILENT:
            assert (ELSEWHERE in output) == (name in strays)
        assert re.search(reason, output), f"{fates[name][0]}: {output}"
    skipping.happened(contacted, counted)
    return counted


def check_run(
    seed: int, name: str, among: dict[str, Site], first: Prepared, seen: Counter[str]
) -> None:
    generator = np.random.default_rng(seed)
    schedule = Schedule(seed, honest=float(generator.uniform(0.2, 0.95)))
    quorum, rounds = int(generator.integers(1, 3)), int(generator.integers(4, 7))
    records: list[Exchange] = []
    expected, skipping = ByHand(name), Skipping(quorum)
    last_counted, began = np.zeros((len(NAMES), 2), int), [0]

    def exchanged(record: Exchange) -> None:
        records.append(record)
        counted = check_record(record, schedule, skipping, began[-1], quorum)
        for fates in schedule.exchanges[began[-1] :]:
            seen.update(kind for kind, _ in fates.values())
        began.append(len(schedule.exchanges))
        if len(counted) >= quorum:
            devices = [NAMES.index(item) for item in counted]
            last_counted[devices] = record.round_number, record.position + 1
            expected.exchange(record.round_number, record.position, devices)

    engine = federation(
        among,
        fault=schedule,
        run=f"schedule{seed}",
        quorum=quorum,
        note=exchanged,
    )
    refusal = ""
    try:
        for state, reports in rounds_of(first, engine, rounds):
            close(state.server, expected.server, 1e-10)
            # Integers are averaged in single precision.
            close(reports[-1].info, expected.info, 1e-6)
            contributed = [
                NAMES[contributor] for contributor in reports[-1].contributors
            ]
            assert contributed == records[-1].counted
            for counted in jax.tree.leaves(state.private):
                np.testing.assert_array_equal(counted, last_counted)
    except NoQuorumError as error:
        refusal = str(error)
    *before, last = records
    assert all(len(record.counted) >= quorum for record in before)
    assert (len(last.counted) < quorum) == bool(refusal)
    if refusal:
        assert all(who in refusal for who in last.excluded)
    else:
        assert last.round_number == rounds - 1
    seen["no quorum" if refusal else "finished"] += 1
    seen["reordered"] += schedule.reordered
    seen["skipped"] += sum(len(record.skipped) for record in records)


def prepared(name: str, among: dict[str, Site]) -> Prepared:
    return prepare(
        Run(
            PROBLEM,
            algorithm(name),
            enrolled(among),
            *START,
            rounds=1,
            weights=WEIGHTS,
            engine=federation(among),
            limits=Limits(norm=1e6),
        )
    )


def rounds_of(
    first: Prepared, engine: Federation, rounds: int
) -> Iterator[tuple[RunState, list[Report]]]:
    """Yield the rounds of `run`, without its measurement of costs."""
    job, state = engine.begin(first.job, first.state)
    participants = participants_of(0, np.arange(len(NAMES)), first.weights)
    for number in range(rounds):
        reports = []
        for place, reference in enumerate(job.phases if number else job.opening):
            moment = Moment(number, place)
            state, report = engine.exchange(job, reference, moment, state, participants)
            reports.append(report)
        yield state, reports


def close(result: Any, wanted: Any, atol: float) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), result, wanted
    )


@pytest.fixture(scope="module")
def everywhere() -> dict[str, tuple[dict[str, Site], Prepared]]:
    with jax.enable_x64(True):
        among = {name: sites(name) for name in AMONG}
        return {name: (held, prepared(name, held)) for name, held in among.items()}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "block", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 5))]
)
def test_the_mean_is_of_those_whose_answers_came_through(block, everywhere):
    seen: Counter[str] = Counter()
    for seed in range(block * SCHEDULES, (block + 1) * SCHEDULES):
        name = AMONG[seed % len(AMONG)]
        among, first = everywhere[name]
        try:
            with no_hang():
                check_run(seed, name, among, first, seen)
        except Exception as error:
            error.add_note(f"schedule {seed} of {name}")
            raise
    wanted = {*FATES, "reordered", "skipped", "no quorum", "finished"}
    assert not wanted - {kind for kind, times in seen.items() if times}
