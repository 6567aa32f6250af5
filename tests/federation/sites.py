"""Sites in this process, for tests of the server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from fedbilevel import BilevelProblem, FederatedAlgorithm, LocalExamples
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Federation,
    Reply,
    Site,
)
from fedbilevel.federation.in_process import InProcess
from tests.engines.federation import START, held
from tests.waiting import HANG


class Clock:
    """A clock of a server, advanced by the test.

    Attributes:
        now: current time in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class UnderWay:
    """A queue of replies, each with its time of arrival.

    Args:
        clock: clock, advanced to the time of each arrival.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._count = clock, 0
        self._replies: list[tuple[float, int, Reply]] = []

    def send(self, delay: float, reply: Reply) -> None:
        self._count += 1
        heappush(self._replies, (self._clock.now + delay, self._count, reply))

    def arriving(self, left: Callable[[], float]) -> Iterator[Reply]:
        """Yield the replies that arrive in time; keep the others."""
        while self._replies and self._replies[0][0] <= self._clock.now + left():
            arrives, _, reply = heappop(self._replies)
            self._clock.now = max(self._clock.now, arrives)
            yield reply
        self._clock.now += max(0.0, left())


def sites_holding(
    held: Sequence[LocalExamples],
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    directory: Path | None = None,
) -> dict[str, Site]:
    """Return sites named site-0 and so on, which share compiled functions."""
    return {
        f"site-{number}": Site(
            number,
            problem,
            algorithm,
            examples,
            *START,
            directory=None if directory is None else directory / f"site-{number}",
            rules=REHEARSAL,
        )
        for number, examples in enumerate(held)
    }


def enrolled(among: Mapping[str, Site]) -> EnrolledDevices:
    return EnrolledDevices(
        {name: site.enrolment for name, site in among.items()}, form=held()[0]
    )


def federation(among: Mapping[str, Site], **settings: Any) -> Federation:
    fault = settings.pop("fault", lambda replies: replies)
    value = {"run": "first", "timeout": HANG, **settings}
    return Federation(InProcess(among, fault), enrolled(among), **value)
