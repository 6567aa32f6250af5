"""Sites in this process, for tests of the server's loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest

from fedbilevel import BilevelProblem, FederatedAlgorithm, LocalExamples
from fedbilevel.federation import (
    REHEARSAL,
    EnrolledDevices,
    Federation,
    Reply,
    Site,
    server,
)
from fedbilevel.federation.in_process import InProcess
from tests.engines.federation import START, held
from tests.waiting import HANG


class Clock:
    """A clock in the place of the module `time`: it stands still unless it is set.

    Attributes:
        now: seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@contextmanager
def false_time() -> Iterator[Clock]:
    """Let servers in this process read a clock that their transport sets."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "time", clock)
        yield clock


class UnderWay:
    """Replies on their way, each of which arrives at its time by a clock.

    Args:
        clock: that is set to the time at which something arrives.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._count = clock, 0
        self._replies: list[tuple[float, int, Reply]] = []

    def send(self, delay: float, reply: Reply) -> None:
        self._count += 1
        heappush(self._replies, (self._clock.now + delay, self._count, reply))

    def arriving(self, left: Callable[[], float]) -> Iterator[Reply]:
        """Yield what arrives until time is up; keep the others."""
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
    """Return sites that share what is compiled, called site-0 and so on."""
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
    given = {"run": "first", "timeout": HANG, **settings}
    return Federation(InProcess(among, fault), enrolled(among), **given)
