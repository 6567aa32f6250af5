"""What the server asks and what a device answers, as messages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree, UInt32

from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation.transport import RefusedError
from fedbilevel.federation.wire_format import (
    decode,
    encode,
    encode_each,
    packed,
    unpacked,
)

HEADER = ("run", "phase", "moment", "key", "counted")
LONGEST_NAME = 64


class Task(NamedTuple):
    """What the server asks of a device in one exchange.

    Attributes:
        run: the run it belongs to, as digits and letters.
        reference: which phase to carry out.
        moment: when in the run.
        key: of the run's random draws, as words.
        counted: the last round that the device has counted in, and how many of the
            round's exchanges were over then. It goes on from what it kept after that.
            Zeros if it has not counted yet, or if devices keep nothing.
        arrays: the downlink: all that reaches a device, by path.

    Example:
        >>> key = np.array([0, 7], np.uint32)
        >>> task = Task("a1", PhaseReference(False, 0), Moment(3, 0), key, (2, 1), {})
        >>> Task.decode(task.encode()).moment
        Moment(round_number=3, exchange=0)
    """

    run: str
    reference: PhaseReference
    moment: Moment
    key: UInt32[np.ndarray, "words"]
    counted: tuple[int, int]
    arrays: dict[str, np.ndarray]

    def encode(self) -> bytes:
        """Return the task as a message."""
        (message,) = self.encode_for([self.counted])
        return message

    def encode_for(self, counted: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the messages to devices that differ in what they have counted in."""
        reference = self.reference
        same = {
            "run": _letters(self.run),
            "phase": np.array([reference.opening, reference.index], np.int64),
            "moment": np.array(self.moment, np.int64),
            "key": self.key,
            **self.arrays,
        }
        return encode_each(
            [{**same, "counted": np.array(one, np.int64)} for one in counted]
        )

    @classmethod
    def decode(cls, message: bytes) -> "Task":
        """Return the task of a message.

        Raises:
            RefusedError: if it is none.
        """
        arrays = decode(message)
        header = _header(arrays, HEADER)
        opening, index = map(int, _numbers(header["phase"], 2))
        if opening not in (0, 1) or index < 0:
            raise RefusedError("its phase is none")
        key = header["key"]
        if key.dtype != np.uint32 or key.ndim != 1:
            raise RefusedError("its key is not made of words")
        round_number, exchanges = map(int, _numbers(header["counted"], 2))
        if round_number < 0 or exchanges < 0:
            raise RefusedError("it counts exchanges that there are not")
        return cls(
            _text(header["run"]),
            PhaseReference(bool(opening), index),
            _moment(header["moment"]),
            key,
            (round_number, exchanges),
            arrays,
        )


class Answer(NamedTuple):
    """What a device sends.

    Attributes:
        run: the run that it answers.
        moment: the exchange that it answers.
        arrays: what it uploads and reports, by path; nothing is known of them yet.

    Example:
        >>> answer = Answer.of("a1", Moment(3, 0), np.ones(2), {})
        >>> form = np.zeros(2), {}
        >>> Answer.decode(answer.encode()).read(form)
        (array([1., 1.]), {})
    """

    run: str
    moment: Moment
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, run: str, moment: Moment, upload: PyTree, info: PyTree) -> "Answer":
        """Return the answer with an upload and a report."""
        return cls(run, moment, packed((upload, info)))

    def encode(self) -> bytes:
        """Return the answer as a message."""
        moment = np.array(self.moment, np.int64)
        return encode({"run": _letters(self.run), "moment": moment, **self.arrays})

    @classmethod
    def decode(cls, message: bytes) -> "Answer":
        """Return the answer of a message.

        Raises:
            RefusedError: if it is none.
        """
        arrays = decode(message)
        header = _header(arrays, ("run", "moment"))
        return cls(_text(header["run"]), _moment(header["moment"]), arrays)

    def read(self, form: PyTree) -> tuple[PyTree, PyTree]:
        """Return the upload and the report, if they are of a form.

        Raises:
            RefusedError: if they are not.
        """
        upload, info = unpacked(self.arrays, form)
        return upload, info


def _header(
    arrays: dict[str, np.ndarray], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Take the named arrays out of a message."""
    for name in names:
        if name not in arrays:
            raise RefusedError(f"it does not say its {name}")
    return {name: arrays.pop(name) for name in names}


def is_name(text: str) -> bool:
    """Return whether a run may be called that: it is a directory's name too.

    Example:
        >>> is_name("first"), is_name("../first")
        (True, False)
    """
    return len(text) <= LONGEST_NAME and text.isascii() and text.isalnum()


def _letters(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii"), np.uint8)


def _text(array: np.ndarray) -> str:
    if array.dtype != np.uint8 or array.ndim != 1 or array.size > LONGEST_NAME:
        raise RefusedError("its run is no name")
    name = array.tobytes().decode("ascii", errors="replace")
    if not is_name(name):
        raise RefusedError("its run is no name")
    return name


def _numbers(array: np.ndarray, count: int) -> np.ndarray:
    if array.dtype != np.int64 or array.shape != (count,):
        raise RefusedError("its header is not made of whole numbers")
    return array


def _moment(array: np.ndarray) -> Moment:
    round_number, exchange = map(int, _numbers(array, 2))
    # Keys are derived from both, as numbers of 32 bits.
    if not (0 <= round_number < 2**31 and 0 <= exchange < 2**31):
        raise RefusedError("its moment is none")
    return Moment(round_number, exchange)
