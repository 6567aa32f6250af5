"""Bad sites with random schedules, and a transport that simulates them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedbilevel import Limits
from fedbilevel.federation import Failure, FailureCause, Reply, Site
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.flare.message_limits import message_limit
from tests.federation.no_enrolment import NoEnrolment
from tests.federation.sites import Clock, UnderWay

NORM_LIMIT, TIMEOUT = 1e6, 30.0
JUST_WITHIN = 1 - 1e-9
"""Fraction of the distance limit that bad uploads use, so that rounding is harmless."""
EXITS = {
    "exits": (10**9, 10**9),
    "exits and comes back": (1, 12),
}
"""Minimum and maximum number of exchanges that a site is absent."""


class Situation(NamedTuple):
    """The information of a bad site when it chooses an answer.

    Attributes:
        task: message of the server.
        honest: answer of an honest site.
        earlier: the site's honest answers to earlier tasks.
        limits: the server's limits on uploads.
        generator: random generator.
    """

    task: Task
    honest: Answer
    earlier: Sequence[Answer]
    limits: Limits
    generator: np.random.Generator


class Sent(NamedTuple):
    """One message of a bad site.

    Attributes:
        message: bytes.
        delay: seconds after the task.
        distorted: whether it is a valid answer with dishonest values.
    """

    message: bytes
    delay: float = 0.0
    distorted: bool = False


def _changed(situation: Situation, arrays: Mapping[str, np.ndarray]) -> list[Sent]:
    answer = situation.honest._replace(arrays={**situation.honest.arrays, **arrays})
    return [Sent(answer.encode(), distorted=True)]


def drips(situation: Situation) -> list[Sent]:
    delay = TIMEOUT * situation.generator.uniform(0.5, 5.0)
    return [Sent(situation.honest.encode(), float(delay))]


def is_silent(situation: Situation) -> list[Sent]:
    return []


def sends_noise(situation: Situation) -> list[Sent]:
    sizes = situation.generator.integers(3000, size=situation.generator.integers(1, 4))
    return [Sent(situation.generator.bytes(int(size))) for size in sizes]


def sends_huge(situation: Situation) -> list[Sent]:
    # Valid except for its size; a real transport would refuse it.
    more = np.zeros(message_limit(0.0, 0.0) + 1, np.uint8)
    return _changed(situation, {"more": more})


def poisons_far(situation: Situation) -> list[Sent]:
    signs = situation.generator.choice([-1.0, 1.0], size=len(situation.honest.arrays))
    size = 0.99 * NORM_LIMIT / len(signs) ** 0.5
    arrays = dict(
        zip(situation.honest.arrays, map(np.asarray, size * signs), strict=True)
    )
    return _changed(situation, arrays)


def poisons_near(situation: Situation) -> list[Sent]:
    """Return an upload in the opposite direction, at the distance limit."""
    assert situation.limits.distance is not None
    reach = JUST_WITHIN * float(situation.limits.distance)
    arrays = {}
    for name, value in situation.honest.arrays.items():
        # Variables have the same names in the downlink and in the upload.
        start = situation.task.arrays[name.replace(".update", "")]
        arrays[name] = np.asarray(start - reach * (value - start))
    return _changed(situation, arrays)


def is_not_finite(situation: Situation) -> list[Sent]:
    victim = str(situation.generator.choice(sorted(situation.honest.arrays)))
    bad = situation.generator.choice([np.nan, np.inf, -np.inf])
    return _changed(situation, {victim: np.asarray(bad)})


def replays(situation: Situation) -> list[Sent]:
    return [Sent(answer.encode()) for answer in _one_of(situation)]


def renumbers(situation: Situation) -> list[Sent]:
    """Send an old upload with the moment of the current task."""
    return [
        sent
        for answer in _one_of(situation)
        for sent in _changed(situation, answer.arrays)
    ]


def _one_of(situation: Situation) -> list[Answer]:
    if not situation.earlier:
        return []
    return [
        situation.earlier[int(situation.generator.integers(len(situation.earlier)))]
    ]


DEEDS: dict[str, Callable[[Situation], list[Sent]]] = {
    "drips": drips,
    "is silent": is_silent,
    "sends noise": sends_noise,
    "sends huge": sends_huge,
    "poisons far": poisons_far,
    "poisons near": poisons_near,
    "is not finite": is_not_finite,
    "replays": replays,
    "renumbers": renumbers,
}
NEVER_COUNT = set(DEEDS) - {"drips", "poisons near", "renumbers"}
"""Deeds after which the upload must never enter the mean."""


class Plan(NamedTuple):
    """The behaviour of a bad site.

    Attributes:
        deeds: deeds from which it draws.
        often: fraction of the exchanges without an honest answer.
    """

    deeds: tuple[str, ...]
    often: float


class BadSites(NoEnrolment):
    """A transport to honest and bad sites, which advances the server's clock.

    Args:
        sites: all sites by name.
        plans: plans of the bad sites by name.
        limits: the server's limits on uploads.
        clock: clock of the server.
        pace: maximum seconds of an honest answer; the minimum is half of it.
        generator: random generator.

    Attributes:
        deeds: deed of each contacted bad site, for each exchange; honest answers are
            not listed.
        distorted: sites that sent dishonest values, for each exchange.
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        plans: Mapping[str, Plan],
        limits: Limits,
        clock: Clock,
        pace: float,
        generator: np.random.Generator,
    ) -> None:
        self._sites, self._plans, self._limits = sites, plans, limits
        self._pace, self._generator = pace, generator
        self._earlier: dict[str, list[Answer]] = {name: [] for name in plans}
        self._gone = dict.fromkeys(plans, 0)
        self._under_way = UnderWay(clock)
        self._last_message = b""
        self.deeds: list[dict[str, str]] = []
        self.distorted: list[set[str]] = []

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Yield replies, including those of earlier exchanges, until time is up."""
        # A repeated message means that the skipped sites are contacted, too.
        (message,) = set(messages.values())
        if message != self._last_message:
            self._last_message = message
            self.deeds.append({})
            self.distorted.append(set())
            self._gone = {name: max(0, more - 1) for name, more in self._gone.items()}
        for name in messages:
            if name in self._plans:
                self._misbehave(name, message)
            else:
                delay = self._pace * self._generator.uniform(0.5, 1.0)
                self._under_way.send(
                    delay, Reply(name, self._sites[name].answer(message))
                )
        yield from self._under_way.arriving(left)

    def _misbehave(self, name: str, message: bytes) -> None:
        draw = self._generator
        plan, deeds = self._plans[name], self.deeds[-1]
        if not self._gone[name] and draw.random() < plan.often:
            deed = str(draw.choice(plan.deeds))
            if deed in EXITS:
                self._gone[name] = int(draw.integers(*EXITS[deed], endpoint=True))
            deeds[name] = deed
        if self._gone[name]:
            deeds.setdefault(name, "is gone")
            if draw.random() < 0.5:  # The transport may or may not report it.
                ended = Failure(FailureCause.FAILED, "its worker process ended")
                self._under_way.send(0.0, Reply(name, failure=ended))
            return
        honest = Answer.decode(self._sites[name].answer(message))
        earlier = self._earlier[name]
        task = Task.decode(message)
        situation = Situation(task, honest, earlier, self._limits, draw)
        sent = (
            DEEDS[deeds[name]](situation) if name in deeds else [Sent(honest.encode())]
        )
        earlier.append(honest)
        for item in sent:
            self._under_way.send(item.delay, Reply(name, item.message))
            if item.distorted:
                self.distorted[-1].add(name)
