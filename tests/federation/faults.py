"""What can become of replies on their way, drawn by seed."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from fedbilevel.engines.protocol import Moment
from fedbilevel.federation import Cause, Failure, Reply
from fedbilevel.federation.messages import Answer
from fedbilevel.federation.wire_format import encode

Arrays = dict[str, np.ndarray]


class Fate(NamedTuple):
    """What becomes of one device's answer to one exchange.

    Attributes:
        replies: what arrives in its stead, in this order.
        counts: whether its upload is to enter the mean.
        words: why it is not, as the server must say.
        later: what arrives in a later exchange.
    """

    replies: tuple[Reply, ...]
    counts: bool
    words: str = ""
    later: tuple[Reply, ...] = ()


SILENT = "did not answer in time"
ELSEWHERE = "sent an answer to another exchange"


def intact(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((reply,), counts=True)


def dropped(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((), counts=False, words=SILENT)


def delayed(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((), counts=False, words=SILENT, later=(reply,))


def duplicated(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((reply, reply), counts=True)


def duplicated_later(reply: Reply, generator: np.random.Generator) -> Fate:
    return Fate((reply,), counts=True, later=(reply, reply))


def failed(reply: Reply, generator: np.random.Generator) -> Fate:
    fails = Reply(reply.device, failure=Failure(Cause.FAILED, "ran out of memory"))
    return Fate((fails,), counts=False, words="ran out of memory")


def failed_at_first(reply: Reply, generator: np.random.Generator) -> Fate:
    starting = Failure(Cause.UNREACHED, "is starting")
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
        if bad == reply:  # a bit flipped twice
            return intact(reply, generator)
        if comes_again:
            return Fate((bad, reply), counts=True)
        return Fate((bad,), counts=False, words="damaged on its way")

    return fate


def lies(
    lie: Callable[[Arrays, str], Arrays], words: str
) -> Callable[[Reply, np.random.Generator], Fate]:
    """Return the fate of one whose message is sound, but not what was asked for."""

    def fate(reply: Reply, generator: np.random.Generator) -> Fate:
        assert reply.message is not None
        answer = Answer.decode(reply.message)
        victim = str(generator.choice(sorted(answer.arrays)))
        told = answer._replace(arrays=lie(dict(answer.arrays), victim))
        return Fate((reply._replace(message=told.encode()),), False, words)

    return fate


def filled(value: float) -> Callable[[Arrays, str], Arrays]:
    def lie(arrays: Arrays, victim: str) -> Arrays:
        # Whole numbers cannot be such.
        among = [name for name, one in arrays.items() if one.dtype.kind == "f"]
        victim = victim if victim in among else among[0]
        one = np.array(arrays[victim])
        one[(0,) * one.ndim] = value
        return {**arrays, victim: one}

    return lie


def other_type(arrays: Arrays, victim: str) -> Arrays:
    return {**arrays, victim: arrays[victim].astype(np.float32)}


def other_shape(arrays: Arrays, victim: str) -> Arrays:
    return {**arrays, victim: arrays[victim][None]}


def missing_key(arrays: Arrays, victim: str) -> Arrays:
    return {name: one for name, one in arrays.items() if name != victim}


def with_key(name: str, value: np.ndarray) -> Callable[[Arrays, str], Arrays]:
    return lambda arrays, victim: {**arrays, name: value}


def for_another(run: str | None, later: int) -> Callable[..., Fate]:
    def fate(reply: Reply, generator: np.random.Generator) -> Fate:
        assert reply.message is not None
        answer = Answer.decode(reply.message)
        moment = Moment(int(answer.moment[0]) + later, int(answer.moment[1]))
        told = answer._replace(run=run or answer.run, moment=moment)
        changed = reply._replace(message=told.encode())
        return Fate((changed,), counts=False, words=ELSEWHERE)

    return fate


def without_header(reply: Reply, generator: np.random.Generator) -> Fate:
    assert reply.message is not None
    arrays = Answer.decode(reply.message).arrays
    bare = reply._replace(message=encode(arrays))
    return Fate((bare,), counts=False, words="does not say its run")


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
    "other type": lies(other_type, r"is float32\[.*\] instead of \w+64"),
    "other shape": lies(other_shape, r"\[1(, \d+)*\] instead of"),
    "missing key": lies(missing_key, "is missing"),
    "extra key": lies(with_key("more", np.ones(3)), "'more' was not asked for"),
    "huge message": lies(with_key("more", np.ones(200_000)), "was not asked for"),
    "negative weight": lies(
        with_key("weight", np.array(-1e9)), "'weight' was not asked for"
    ),
    "huge weight": lies(
        with_key("weight", np.array(1e30)), "'weight' was not asked for"
    ),
    "another run": for_another("another", 0),
    "another moment": for_another(None, 1),
    "no header": without_header,
}


class Schedule:
    """Faults of one run, to be given to `InProcess`; remembers what it did.

    Attributes:
        exchanges: for each time that devices were asked the fate of each, in words and
            itself.
        strays: for each such time the devices of which something late arrived, and of
            which time it is.
        reordered: how many exchanges' replies did not come in order.
    """

    def __init__(self, seed: int, honest: float) -> None:
        self._generator = np.random.default_rng([seed, 41])
        self._honest = honest
        self._later: list[tuple[int, Reply, int]] = []
        self.exchanges: list[dict[str, tuple[str, Fate]]] = []
        self.strays: list[set[tuple[str, int]]] = []
        self.reordered = 0

    def __call__(self, replies: Iterable[Reply]) -> list[Reply]:
        now = len(self.exchanges)
        late = [(reply, of) for due, reply, of in self._later if due <= now]
        arriving = [reply for reply, _ in late]
        self._later = [one for one in self._later if one[0] > now]
        self.strays.append({(reply.device, of) for reply, of in late})
        fates = {}
        for reply in replies:
            _, fate = fates[reply.device] = self._draw(reply)
            arriving += fate.replies
            for one in fate.later:
                due = now + int(self._generator.integers(1, 4))
                self._later.append((due, one, now))
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
