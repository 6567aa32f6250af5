"""Bad sites that follow schedules drawn by seed, and a transport that plays them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedbilevel import Limits
from fedbilevel.federation import Cause, Failure, Reply, Site
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.flare.message_limits import message_limit
from tests.federation.no_enrolment import NoEnrolment
from tests.federation.sites import Clock, UnderWay

NORM_LIMIT, TIMEOUT = 1e6, 30.0
JUST_WITHIN = 1 - 1e-9
"""Of what the distance limit allows: at the limit itself, rounding would decide."""
EXITS = {
    "exits": (10**9, 10**9),
    "exits and comes back": (1, 12),
}
"""The fewest and the most exchanges that a site is gone for."""


class Situation(NamedTuple):
    """What a bad site knows when it decides on an answer.

    Attributes:
        task: what the server asks.
        honest: what an honest site would answer.
        earlier: its own honest answers to earlier tasks.
        limits: that the server holds uploads to.
        generator: draws what is left open.
    """

    task: Task
    honest: Answer
    earlier: Sequence[Answer]
    limits: Limits
    generator: np.random.Generator


class Sent(NamedTuple):
    """One message of a bad site.

    Attributes:
        message: of any content.
        delay: seconds after the task.
        distorted: whether it has the form of an answer, but not an honest one's values.
    """

    message: bytes
    delay: float = 0.0
    distorted: bool = False


def _changed(here: Situation, arrays: Mapping[str, np.ndarray]) -> list[Sent]:
    answer = here.honest._replace(arrays={**here.honest.arrays, **arrays})
    return [Sent(answer.encode(), distorted=True)]


def drips(here: Situation) -> list[Sent]:
    delay = TIMEOUT * here.generator.uniform(0.5, 5.0)
    return [Sent(here.honest.encode(), float(delay))]


def is_silent(here: Situation) -> list[Sent]:
    return []


def sends_noise(here: Situation) -> list[Sent]:
    sizes = here.generator.integers(3000, size=here.generator.integers(1, 4))
    return [Sent(here.generator.bytes(int(size))) for size in sizes]


def sends_huge(here: Situation) -> list[Sent]:
    # In order but for its size; a real transport would not even have taken it in.
    more = np.zeros(message_limit(0.0, 0.0) + 1, np.uint8)
    return _changed(here, {"more": more})


def poisons_far(here: Situation) -> list[Sent]:
    signs = here.generator.choice([-1.0, 1.0], size=len(here.honest.arrays))
    size = 0.99 * NORM_LIMIT / len(signs) ** 0.5
    arrays = dict(zip(here.honest.arrays, map(np.asarray, size * signs), strict=True))
    return _changed(here, arrays)


def poisons_near(here: Situation) -> list[Sent]:
    """Go the other way, as far as the limit allows: honest sites all go as far."""
    assert here.limits.distance is not None
    reach = JUST_WITHIN * float(here.limits.distance)
    arrays = {}
    for name, value in here.honest.arrays.items():
        # Variables are called alike in what was sent and in what comes back.
        start = here.task.arrays[name.replace(".update", "")]
        arrays[name] = np.asarray(start - reach * (value - start))
    return _changed(here, arrays)


def is_not_finite(here: Situation) -> list[Sent]:
    victim = str(here.generator.choice(sorted(here.honest.arrays)))
    bad = here.generator.choice([np.nan, np.inf, -np.inf])
    return _changed(here, {victim: np.asarray(bad)})


def replays(here: Situation) -> list[Sent]:
    return [Sent(answer.encode()) for answer in _one_of(here)]


def renumbers(here: Situation) -> list[Sent]:
    """Send an old upload under the number of the present task."""
    return [sent for answer in _one_of(here) for sent in _changed(here, answer.arrays)]


def _one_of(here: Situation) -> list[Answer]:
    if not here.earlier:
        return []
    return [here.earlier[int(here.generator.integers(len(here.earlier)))]]


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
"""Deeds after which the upload must not be in the mean, whatever the schedule."""


class Plan(NamedTuple):
    """The way of one bad site.

    Attributes:
        deeds: that it chooses from.
        often: the part of the exchanges in which it does not answer honestly.
    """

    deeds: tuple[str, ...]
    often: float


class BadSites(NoEnrolment):
    """A transport to sites of which some are bad. Time passes as they answer.

    Args:
        sites: all of them, by name.
        plans: of those that are bad, by name.
        limits: that the server holds uploads to.
        clock: that the server reads.
        pace: the most seconds that an honest answer takes, and twice the fewest.
        generator: draws what they do.

    Attributes:
        deeds: what each bad site that was asked did, for each exchange; honest answers
            are not listed.
        distorted: for each exchange, who sent an answer that is not honest in values.
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
        self._asked = b""
        self.deeds: list[dict[str, str]] = []
        self.distorted: list[set[str]] = []

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Yield what arrives, also of earlier exchanges, until time is up."""
        # All get the same. Else sites that were being skipped are asked, too.
        (message,) = set(messages.values())
        if message != self._asked:
            self._asked = message
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
            if draw.random() < 0.5:  # the transport may know, or it may not
                ended = Failure(Cause.FAILED, "its worker process ended")
                self._under_way.send(0.0, Reply(name, failure=ended))
            return
        honest = Answer.decode(self._sites[name].answer(message))
        earlier = self._earlier[name]
        task = Task.decode(message)
        here = Situation(task, honest, earlier, self._limits, draw)
        sent = DEEDS[deeds[name]](here) if name in deeds else [Sent(honest.encode())]
        earlier.append(honest)
        for one in sent:
            self._under_way.send(one.delay, Reply(name, one.message))
            if one.distorted:
                self.distorted[-1].add(name)
