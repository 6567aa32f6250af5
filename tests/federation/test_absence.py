"""Absent devices and endless transports do not block a run."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import pytest

from fedbilevel import Limits, UniformSample, run
from fedbilevel.engines.limits import NO_LIMITS
from fedbilevel.federation import (
    Exchange,
    Failure,
    FailureCause,
    Federation,
    NoQuorumError,
    Reply,
)
from fedbilevel.federation.backoff import Absences
from fedbilevel.federation.in_process import InProcess
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.replies import NOT_AWAITED
from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import Transport
from tests.engines.federation import START
from tests.federation.alike import PROBLEM, WEIGHTS, algorithm, sites
from tests.federation.no_enrolment import NoEnrolment
from tests.federation.sites import Clock, UnderWay, enrolled, federation
from tests.waiting import no_hang

NAME = "two exchanges, private state"
FAR = "FedBiO"


def pauses(absences: Absences, misses: int) -> Iterator[int]:
    """Yield the exchanges that device 1 is skipped after each miss."""
    for _ in range(misses):
        absences.note([0, 1], missing=[1])
        for pause in itertools.count():
            if absences.without_skipped([0, 1]) == [0, 1]:
                yield pause
                break
            absences.note([0], missing=[])


def test_a_device_is_skipped_for_longer_and_longer():
    expected = [0, 1, 3, 7, 15, 31, 63, 64, 64, 64]
    assert list(pauses(Absences(), misses=10)) == expected


def test_a_device_that_answers_regularly_is_contacted_as_before():
    absences = Absences()
    list(pauses(absences, misses=5))
    for _ in range(8):
        absences.note([0, 1], missing=[])
        assert absences.without_skipped([0, 1]) == [0, 1]
    absences.note([0, 1], missing=[1])
    assert absences.without_skipped([0, 1]) == [0, 1]


def test_a_device_that_is_late_every_second_time_is_not_waited_for_every_second_time():
    absences = Absences()
    request, late = 0, itertools.cycle([True, False])
    waited = 0
    for _ in range(1000):
        if 1 not in absences.without_skipped([0, 1]):
            absences.note([0], missing=[])
            continue
        request += 1
        is_late = next(late)
        waited += is_late
        absences.note([0, 1], missing=[1] if is_late else [])
    # 500 when an answer cancelled all misses.
    assert waited < 120
    assert request > 100


def test_a_device_that_is_late_once_in_twenty_is_always_contacted():
    absences = Absences()
    for number in range(200):
        assert absences.without_skipped([0, 1]) == [0, 1]
        absences.note([0, 1], missing=[1] if number % 20 == 0 else [])


def test_if_all_would_be_skipped_all_are_contacted():
    absences = Absences()
    for _ in range(4):
        absences.note([0, 1], missing=[0, 1])
    assert absences.without_skipped([0, 1]) == [0, 1]
    absences.note([0, 1], missing=[1])
    assert [absences.without_skipped([0, 1]) for _ in range(3)] == [[0]] * 3


def test_if_fewer_than_the_quorum_would_be_contacted_all_are():
    absences = Absences()
    for _ in range(2):
        absences.note([0, 1, 2], missing=[1, 2])
    assert absences.without_skipped([0, 1, 2], at_least=2) == [0, 1, 2]


@pytest.mark.nightly
def test_a_run_names_those_who_stayed_away_and_why(caplog):
    among = sites(NAME)
    records: list[Exchange] = []

    def fault(replies):
        return [item for item in replies if item.device != "site-3"]

    engine = federation(among, fault=fault, note=records.append)
    setting = PROBLEM, algorithm(NAME), enrolled(among)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        list(run(*setting, *START, rounds=4, weights=WEIGHTS, engine=engine))
    request = [not record.skipped for record in records]
    assert request == [True, True, False, True, False, False, False, True]
    for record, wanted in zip(records, request, strict=True):
        others = ["site-0", "site-2", "site-4"]
        assert (record.counted, record.skipped) == (others, ["site-3"] * (not wanted))
        assert record.excluded == (
            {"site-3": "did not answer in time"} if wanted else {}
        )
    assert caplog.messages[0] == (
        "Round 0, exchange 0: excluded device site-3 (in 1 of its 1 rounds): did not "
        "answer in time"
    )
    # A warning when the count has doubled, including rounds without contact.
    counts = [message.split("(in ")[1][:13] for message in caplog.messages]
    assert counts == ["1 of its 1 ro", "2 of its 2 ro", "4 of its 4 ro"]


@pytest.mark.slow
def test_skipped_devices_are_contacted_before_an_exchange_fails():
    among = sites(NAME)
    records: list[Exchange] = []

    def fault(replies):
        for reply in replies:
            # In the third exchange the absent site-3 is skipped at first.
            if len(records) < 2 and reply.device == "site-3":
                continue
            if len(records) == 2 and reply.device == "site-0":
                failure = Failure(FailureCause.FAILED, "ran out of memory")
                reply = Reply("site-0", failure=failure)
            yield reply

    engine = federation(among, fault=fault, note=records.append, quorum=3)
    setting = PROBLEM, algorithm(NAME), enrolled(among)
    list(run(*setting, *START, rounds=2, weights=WEIGHTS, engine=engine))
    assert records[1].counted == ["site-0", "site-2", "site-4"]
    assert sorted(records[2].counted) == ["site-2", "site-3", "site-4"]
    assert records[2].excluded == {"site-0": "ran out of memory"}
    assert records[2].skipped == []


class Endless(NoEnrolment):
    """A transport that never stops sending unexpected replies."""

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        while True:
            time.sleep(0.001)
            yield Reply("site-0", b"nothing")


@pytest.mark.slow
def test_a_transport_that_never_ends_is_left_when_time_is_up():
    among = sites(NAME)
    records: list[Exchange] = []
    engine = Federation(
        Endless(), enrolled(among), run="a", timeout=0.3, note=records.append
    )
    rounds = run(
        PROBLEM, algorithm(NAME), enrolled(among), *START, rounds=1, engine=engine
    )
    refused = r'Round 0.*Site "site-0": sent an invalid answer'
    with no_hang(), pytest.raises(NoQuorumError, match=refused):
        next(rounds)
    assert records[0].excluded["site-1"] == "did not answer in time"


def with_patience(
    transport: Transport,
    among: Mapping[str, Site],
    *,
    quorum: int,
    rounds: int,
    name: str = NAME,
    limits: Limits = NO_LIMITS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Exchange]:
    """Return the exchanges of a run with a straggler factor of 3."""
    records: list[Exchange] = []
    engine = Federation(
        transport,
        enrolled(among),
        run="a",
        timeout=60.0,
        quorum=quorum,
        straggler_factor=3.0,
        note=records.append,
        clock=clock,
    )
    setting = PROBLEM, algorithm(name), enrolled(among)
    steps = run(
        *setting, *START, rounds=rounds, weights=WEIGHTS, limits=limits, engine=engine
    )
    list(steps)
    return records


def be_slow(left: Callable[[], float]) -> None:
    """Sleep for half a second, or until the timeout."""
    until = time.monotonic() + 0.5
    while left() > 0 and time.monotonic() < until:
        time.sleep(0.01)


class Straggling(NoEnrolment):
    """A transport to sites that answer after a second each, except one."""

    def __init__(self, among: Mapping[str, Site], clock: Clock) -> None:
        self._inside, self._clock = InProcess(among), clock

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        others = {name: item for name, item in messages.items() if name != "site-3"}
        for reply in self._inside.exchange(others, left):
            self._clock.now += 1.0
            yield reply
        while left() > 0:
            self._clock.now += 0.5


@pytest.mark.slow
def test_a_straggler_is_not_waited_for_longer_than_the_others_took():
    among, clock = sites(NAME), Clock()
    transport = Straggling(among, clock)
    records = with_patience(transport, among, quorum=3, rounds=3, clock=clock)
    assert records
    for record in records:
        # It is contacted again, because it may be faster next time.
        assert record.skipped == []
        assert record.excluded == {"site-3": NOT_AWAITED.reason}
        # Three times the 3 seconds in which more than half of the four answered.
        assert record.seconds == 9.0


class Hasty(NoEnrolment):
    """A transport to two fast sites and to slower ones."""

    def __init__(self, among: Mapping[str, Site]) -> None:
        self._inside = InProcess(among)

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        hasty = {name: messages[name] for name in ("site-0", "site-2")}
        yield from self._inside.exchange(hasty, left)
        be_slow(left)
        if left() > 0:
            others = {name: messages[name] for name in messages.keys() - hasty.keys()}
            yield from self._inside.exchange(others, left)


@pytest.mark.slow
def test_a_hasty_half_does_not_shut_the_others_out(monkeypatch):
    monkeypatch.setattr("fedbilevel.federation.reply_window.SHORTEST", 0.0)
    among = sites(NAME)
    for site in among.values():
        site.warm_up()
    with no_hang():
        records = with_patience(Hasty(among), among, quorum=2, rounds=2)
    for record in records:
        assert record.excluded == {}


@pytest.mark.slow
def test_an_upload_that_goes_too_far_closes_no_exchange_early(monkeypatch):
    monkeypatch.setattr("fedbilevel.federation.reply_window.SHORTEST", 0.0)
    among = sites(FAR)
    for site in among.values():
        site.warm_up()

    class Poisoned(NoEnrolment):
        """A transport with an upload beyond the distance limit and a slow site."""

        def exchange(
            self, messages: Mapping[str, bytes], left: Callable[[], float]
        ) -> Iterator[Reply]:
            first = dict(messages)
            name, last = first.popitem()
            for reply in InProcess(among).exchange(first, left):
                assert reply.message is not None
                answer = Answer.decode(reply.message)
                if reply.device == "site-0":
                    moved = {name: 1e6 + item for name, item in answer.arrays.items()}
                    answer = answer._replace(arrays=moved)
                yield Reply(reply.device, answer.encode())
            be_slow(left)
            if left() > 0:
                yield from InProcess(among).exchange({name: last}, left)

    near = Limits(distance=10.0)
    with no_hang():
        records = with_patience(
            Poisoned(), among, quorum=3, rounds=2, name=FAR, limits=near
        )
    for record in records:
        assert list(record.excluded) == ["site-0"]


class Paced(NoEnrolment):
    """A transport to sites with given response times, by a simulated clock."""

    def __init__(
        self, among: Mapping[str, Site], seconds: Mapping[str, float], clock: Clock
    ) -> None:
        self._sites, self._seconds = among, seconds
        self._under_way = UnderWay(clock)

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        for name, message in messages.items():
            reply = Reply(name, self._sites[name].answer(message))
            self._under_way.send(self._seconds[name], reply)
        yield from self._under_way.arriving(left)


def paced(seconds: Mapping[str, float], quorum: int) -> list[Exchange]:
    """Return the exchanges of four rounds with these response times."""
    among = sites(NAME)
    clock = Clock()
    transport = Paced(among, seconds, clock)
    return with_patience(transport, among, quorum=quorum, rounds=4, clock=clock)


@pytest.mark.slow
def test_a_site_that_answers_at_once_does_not_shut_out_the_others():
    seconds = {"site-0": 0.0, "site-2": 5.0, "site-3": 6.0, "site-4": 7.0}
    for record in paced(seconds, 1):
        assert record.counted == list(seconds)
        assert record.seconds == 7.0


@pytest.mark.slow
def test_a_straggler_one_exchange_late_is_still_contacted():
    seconds = {"site-0": 1.0, "site-2": 1.0, "site-3": 4.0, "site-4": 1.0}
    for record in paced(seconds, 3):
        assert record.skipped == []
        assert record.excluded == {"site-3": NOT_AWAITED.reason}
        assert record.seconds == 3.0


@pytest.mark.slow
def test_a_straggler_factor_below_one_is_refused():
    with pytest.raises(
        ValueError, match=r"straggler_factor is .*; give a number of at least 1"
    ):
        federation(sites(NAME), straggler_factor=0.5)


@pytest.mark.slow
def test_too_few_chosen_devices_are_no_quorum():
    among = sites(NAME)
    rounds = run(
        PROBLEM,
        algorithm(NAME),
        enrolled(among),
        *START,
        rounds=1,
        participation=UniformSample(1),
        engine=federation(among, quorum=2),
    )
    with pytest.raises(NoQuorumError, match=r"1 of 2 .* No other device was sampled"):
        list(rounds)


def test_a_federation_that_could_not_work_is_refused():
    among = sites(NAME)
    for name in ("", "my-run", "é", "a" * 65):
        with pytest.raises(ValueError, match="but a run name has 1 to 64"):
            federation(among, run=name)


class Overhearing(NoEnrolment):
    """A transport that records its messages and reaches no site."""

    def __init__(self) -> None:
        self.messages: dict[str, bytes] = {}

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        self.messages.update(messages)
        return iter(())


@pytest.mark.slow
def test_devices_get_the_key_of_the_runs_seed():
    among, transport = sites(NAME), Overhearing()
    engine = Federation(transport, enrolled(among), run="a", timeout=0.01)
    setting = PROBLEM, algorithm(NAME), enrolled(among)
    with pytest.raises(NoQuorumError):
        next(run(*setting, *START, rounds=1, seed=5, engine=engine))
    keys = {tuple(Task.decode(item).key) for item in transport.messages.values()}
    assert keys == {tuple(jax.random.key_data(jax.random.key(5)).tolist())}
    assert set(transport.messages) == set(among)
