"""Messages between server and devices: tasks and answers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree, UInt32

from fedbilevel.data.weights import LARGEST_FACTOR
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation.transport import RefusedError
from fedbilevel.federation.wire_format import (
    decode,
    encode,
    encode_each,
    pack,
    unpack,
)

HEADER = ("run", "phase", "moment", "key", "counted")
LONGEST_NAME = 64
COUNTED_BYTES = 16
"""Bytes of the field counted, which is the last one of a task."""
FACTORS = "factors"
"""Field before counted, in runs whose devices have other weights in each loss."""


class Task(NamedTuple):
    """The server's request to a device in one exchange.

    Attributes:
        run: name of the run, of letters and digits.
        reference: phase to carry out.
        moment: round and exchange.
        key: key data of the run's random key.
        counted: last round in which the device's upload counted, and the number of
            that round's exchanges until then. The device continues from its state after
            that exchange. Zeros if no upload has counted, or if devices are stateless.
        arrays: downlink, as arrays by path.
        factors: factors of the device's upper and lower loss, from 0 to 10⁶; None if
            all devices have the same weight in both losses.

    Example:
        >>> key = np.array([0, 7], np.uint32)
        >>> task = Task("a1", PhaseReference(False, 0), Moment(3, 0), key, (2, 1), {})
        >>> Task.decode(task.encode()).moment
        Moment(round_number=3, exchange=0)
        >>> Task.decode(task._replace(factors=(0.5, 1.5)).encode()).factors
        (0.5, 1.5)
    """

    run: str
    reference: PhaseReference
    moment: Moment
    key: UInt32[np.ndarray, "size"]
    counted: tuple[int, int]
    arrays: dict[str, np.ndarray]
    factors: tuple[float, float] | None = None

    def encode(self) -> bytes:
        """Return the task as a message."""
        factors = None if self.factors is None else [self.factors]
        (message,) = self.encode_for([self.counted], factors)
        return message

    def encode_for(
        self,
        counted: Sequence[tuple[int, int]],
        factors: Sequence[tuple[float, float]] | None = None,
    ) -> list[bytes]:
        """Return a message for each value of `counted`, with the factors beside it."""
        reference = self.reference
        same = {
            "run": _letters(self.run),
            "phase": np.array([reference.opening, reference.index], np.int64),
            "moment": np.array(self.moment, np.int64),
            "key": self.key,
            **self.arrays,
        }
        own = [{"counted": np.array(last, np.int64)} for last in counted]
        if factors is not None:
            own = [
                {FACTORS: np.array(pair, np.float64), **fields}
                for pair, fields in zip(factors, own, strict=True)
            ]
        return encode_each([{**same, **fields} for fields in own], len(own[0]))

    @classmethod
    def decode(cls, message: bytes) -> "Task":
        """Return the task of a message.

        Raises:
            RefusedError: if the message is not a valid task.
        """
        arrays = decode(message)
        header = _header(arrays, HEADER)
        opening, index = map(int, _numbers(header["phase"], 2))
        if opening not in (0, 1) or index < 0:
            raise RefusedError("the task's phase is not valid")
        key = header["key"]
        if key.dtype != np.uint32 or key.ndim != 1:
            raise RefusedError("the task's key is not a vector of uint32")
        round_number, exchanges = map(int, _numbers(header["counted"], 2))
        if round_number < 0 or exchanges < 0:
            raise RefusedError("the task's field counted is negative")
        factors = _factors(arrays.pop(FACTORS)) if FACTORS in arrays else None
        return cls(
            _text(header["run"]),
            PhaseReference(bool(opening), index),
            _moment(header["moment"]),
            key,
            (round_number, exchanges),
            arrays,
            factors,
        )


class Answer(NamedTuple):
    """The reply of a device: its upload and its metrics.

    Attributes:
        run: run of the task.
        moment: round and exchange of the task.
        arrays: upload and metrics, as arrays by path, not validated yet.

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
        """Return the answer with an upload and metrics."""
        return cls(run, moment, pack((upload, info)))

    def encode(self) -> bytes:
        """Return the answer as a message."""
        moment = np.array(self.moment, np.int64)
        return encode({"run": _letters(self.run), "moment": moment, **self.arrays})

    @classmethod
    def decode(cls, message: bytes) -> "Answer":
        """Return the answer of a message.

        Raises:
            RefusedError: if the message is not a valid answer.
        """
        arrays = decode(message)
        header = _header(arrays, ("run", "moment"))
        return cls(_text(header["run"]), _moment(header["moment"]), arrays)

    def read(self, form: PyTree) -> tuple[PyTree, PyTree]:
        """Return the upload and the metrics if names, shapes and types match `form`.

        Raises:
            RefusedError: if they do not.
        """
        upload, info = unpack(self.arrays, form)
        return upload, info


def _header(
    arrays: dict[str, np.ndarray], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Remove the named arrays from a message and return them."""
    for name in names:
        if name not in arrays:
            raise RefusedError(f"the message has no field {name}")
    return {name: arrays.pop(name) for name in names}


def is_name(text: str) -> bool:
    """Return whether a text is a valid run name, which is also a directory name.

    Example:
        >>> is_name("first"), is_name("../first")
        (True, False)
    """
    return len(text) <= LONGEST_NAME and text.isascii() and text.isalnum()


def _letters(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii"), np.uint8)


def _text(array: np.ndarray) -> str:
    if array.dtype != np.uint8 or array.ndim != 1 or array.size > LONGEST_NAME:
        raise RefusedError("the field run is not a valid run name")
    name = array.tobytes().decode("ascii", errors="replace")
    if not is_name(name):
        raise RefusedError("the field run is not a valid run name")
    return name


def _numbers(array: np.ndarray, count: int) -> np.ndarray:
    if array.dtype != np.int64 or array.shape != (count,):
        raise RefusedError("a header field is not a vector of int64")
    return array


def _factors(array: np.ndarray) -> tuple[float, float]:
    if array.dtype != np.float64 or array.shape != (2,):
        raise RefusedError("the task's factors are not two numbers of float64")
    upper, lower = map(float, array)
    # NaN is not in the range either.
    if not (0 <= upper <= LARGEST_FACTOR and 0 <= lower <= LARGEST_FACTOR):
        raise RefusedError(
            f"the task's factors of the upper and the lower loss are {upper:g} and "
            f"{lower:g}, but a site accepts 0 to {LARGEST_FACTOR}; check who operates "
            "the server"
        )
    return upper, lower


def _moment(array: np.ndarray) -> Moment:
    round_number, exchange = map(int, _numbers(array, 2))
    # Random keys are derived from both numbers, which must fit in 32 bits.
    if not (0 <= round_number < 2**31 and 0 <= exchange < 2**31):
        raise RefusedError("the field moment is out of range")
    return Moment(round_number, exchange)
