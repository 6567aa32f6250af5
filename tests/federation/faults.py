"""Random faults of replies, drawn by seed."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from fedbilevel.engines.protocol import Moment
from fedbilevel.federation import Failure, FailureCause, Reply
from fedbilevel.federation.messages import Answer
from fedbilevel.federation.wire_format import encode

Arrays = dict[str, np.ndarray]


class Fate(NamedTuple):
    """The fault of one device's answer in one exchange.

    Attributes:
        replies: replies that arrive instead, in this order.
        counts: whether its upload must enter the mean.
        reason: reason that the server must report otherwise.
        later: replies that arrive in a later exchange.
    """

    replies: tuple[Reply, ...]
    counts: bool
    reason: str = ""
    later: tuple[Reply, ...] = ()


SILENT = "did not answer in time"
ELSEWHERE = "sent an answer to another exchange"


def intact(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((reply,), counts=True)


def dropped(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((), counts=False, reason=SILENT)


def delayed(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((), counts=False, reason=SILENT, later=(reply,))


def duplicated(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((reply, reply), counts=True)


def duplicated_later(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((reply,), counts=True, later=(reply, reply))


def failed(reply: Reply, generator: np.random.Generator) -> Fate:
    fails = Reply(
        reply.device, failure=Failure(FailureCause.FAILED, "ran out of memory")
    )
    return Fate((fails,), counts=False, reason="ran out of memory")


def failed_at_first(reply: Reply, generator: np.random.Generator) -> Fate:
    starting = Failure(FailureCause.UNREACHED, "is starting")
    return Fate((Reply(reply.device, failure=starting), reply), counts=True)


def flipped(message: bytes, generator: np.random.Generator) -> bytes:
    content = bytearray(message)
    for place in generator.integers(len(content), size=generator.integers(1, 9)):
        content[place] ^= int(1 << generator.integers(8))
    return bytes(content)


def truncated(message: bytes, generator: np.random.Generator) -> bytes:
    return message[: int(generator.integers(len(message)))]


def extended(message: bytes, generator: np.random.Generator) -> bytes:
    return message + generator.bytes(int(generator.integers(1, 100)))


def emptied(message: bytes, generator: np.random.Generator) -> bytes:
    return b""


def noise(message: bytes, generator: np.random.Generator) -> bytes:
    return generator.bytes(2_000_000)


def damaged(
    damage: Callable[[bytes, np.random.Generator], bytes], comes_again: bool = False
) -> Callable[[Reply, np.random.Generator], Fate]:
    def fate(reply: Reply, generator: np.random.Generator) -> Fate:
        assert reply.message is not None
        bad = reply._replace(message=damage(reply.message, generator))
        if bad == reply:  # A bit may have flipped twice.
            return intact(reply, generator)
        if comes_again:
            return Fate((bad, reply), counts=True)
        return Fate((bad,), counts=False, reason="damaged in transit")

    return fate


def lies(
    lie: Callable[[Arrays, str], Arrays], reason: str
) -> Callable[[Reply, np.random.Generator], Fate]:
    """Return the fault of a valid message that does not answer the task."""

    def fate(reply: Reply, generator: np.random.Generator) -> Fate:
        assert reply.message is not None
        answer = Answer.decode(reply.message)
        victim = str(generator.choice(sorted(answer.arrays)))
        response = answer._replace(arrays=lie(dict(answer.arrays), victim))
        return Fate((reply._replace(message=response.encode()),), False, reason)

    return fate


def filled(value: float) -> Callable[[Arrays, str], Arrays]:
    def lie(arrays: Arrays, victim: str) -> Arrays:
        # Integers cannot be infinite.
        among = [name for name, item in arrays.items() if item.dtype.kind == "f"]
        victim = victim if victim in among else among[0]
        item = np.array(arrays[victim])
        item[(0,) * item.ndim] = value
        return {**arrays, victim: item}

    return lie


def other_type(arrays: Arrays, victim: str) -> Arrays:
    return {**arrays, victim: arrays[victim].astype(np.float32)}


def other_shape(arrays: Arrays, victim: str) -> Arrays:
    return {**arrays, victim: arrays[victim][None]}


def missing_key(arrays: Arrays, victim: str) -> Arrays:
    return {name: item for name, item in arrays.items() if name != victim}


def with_key(name: str, value: np.ndarray) -> Callable[[Arrays, str], Arrays]:
    return lambda arrays, victim: {**arrays, name: value}


def for_another(run: str | None, later: int) -> Callable[..., Fate]:
    def fate(reply: Reply, generator: np.random.Generator) -> Fate:
        assert reply.message is not None
        answer = Answer.decode(reply.message)
        moment = Moment(int(answer.moment[0]) + later, int(answer.moment[1]))
        response = answer._replace(run=run or answer.run, moment=moment)
        changed = reply._replace(message=response.encode())
        return Fate((changed,), counts=False, reason=ELSEWHERE)

    return fate


def without_header(reply: Reply, generator: np.random.Generator) -> Fate:
    assert reply.message is not None
    arrays = Answer.decode(reply.message).arrays
    bare = reply._replace(message=encode(arrays))
    return Fate((bare,), counts=False, reason="has no field run")


BAD_NUMBERS = r"upload is not finite or exceeds the norm limit of 1e\+06"
FATES: dict[str, Callable[[Reply, np.random.Generator], Fate]] = {
    "intact": intact,
    "dropped": dropped,
    "delayed": delayed,
    "duplicated": duplicated,
    "duplicated later": duplicated_later,
    "failed": failed,
    "failed at first": failed_at_first,
    "bits flipped": damaged(flipped),
    "truncated": damaged(truncated),
    "extended": damaged(extended),
    "empty": damaged(emptied),
    "huge noise": damaged(noise),
    "damaged, then again": damaged(flipped, comes_again=True),
    "not a number": lies(filled(np.nan), BAD_NUMBERS),
    "infinite": lies(filled(-np.inf), BAD_NUMBERS),
    "1e30": lies(filled(1e30), BAD_NUMBERS),
    "other type": lies(other_type, r"is float32\[.*\], expected \w+64"),
    "other shape": lies(other_shape, r"\[1(, \d+)*\], expected"),
    "missing key": lies(missing_key, "is missing"),
    "extra key": lies(with_key("more", np.ones(3)), "'more' is not expected"),
    "huge message": lies(with_key("more", np.ones(200_000)), "is not expected"),
    "negative weight": lies(
        with_key("weight", np.array(-1e9)), "'weight' is not expected"
    ),
    "huge weight": lies(with_key("weight", np.array(1e30)), "'weight' is not expected"),
    "another run": for_another("another", 0),
    "another moment": for_another(None, 1),
    "no header": without_header,
}


class Schedule:
    """The faults of one run, for `InProcess`.

    Attributes:
        exchanges: name and fate of each contacted device, for each request.
        strays: devices with a late reply and the request of that reply, for each
            request.
        reordered: number of exchanges whose replies were reordered.
    """

    def __init__(self, seed: int, honest: float) -> None:
        self._generator = np.random.default_rng([seed, 41])
        self._honest = honest
        self._later: list[tuple[int, Reply, int]] = []
        self.exchanges: list[dict[str, tuple[str, Fate]]] = []
        self.strays: list[set[tuple[str, int]]] = []
        self.reordered = 0

    def __call__(self, replies: Iterable[Reply]) -> list[Reply]:
        current = len(self.exchanges)
        late = [(reply, of) for due, reply, of in self._later if due <= current]
        arriving = [reply for reply, _ in late]
        self._later = [item for item in self._later if item[0] > current]
        self.strays.append({(reply.device, of) for reply, of in late})
        fates = {}
        for reply in replies:
            _, fate = fates[reply.device] = self._draw(reply)
            arriving += fate.replies
            for item in fate.later:
                due = current + int(self._generator.integers(1, 4))
                self._later.append((due, item, current))
        self.exchanges.append(fates)
        if self._generator.random() < 0.5:
            arriving = self._shuffled(arriving)
        return arriving

    def _draw(self, reply: Reply) -> tuple[str, Fate]:
        kind = "intact"
        if self._generator.random() > self._honest:
            kind = str(self._generator.choice(list(FATES)))
        return kind, FATES[kind](reply, self._generator)

    def _shuffled(self, replies: list[Reply]) -> list[Reply]:
        order = self._generator.permutation(len(replies))
        self.reordered += not np.array_equal(order, np.arange(len(replies)))
        return [replies[place] for place in order]
