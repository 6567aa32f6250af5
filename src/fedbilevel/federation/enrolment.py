"""Who takes part in a federation, and what the server knows of their data."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PyTree

from fedbilevel.data.devices import LocalExamples
from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.federation.transport import RefusedError

LONGEST = 2**16
"""Bytes of an enrolment; it has some fifty for each array of an example."""


class Enrolment(NamedTuple):
    """What a device tells the server of its data: of which form, and how many.

    Attributes:
        upper: shape and type of one example of the upper loss, array by array.
        lower: the same of the lower loss.
        upper_size: how many examples of the upper loss there are.
        lower_size: how many of the lower loss.

    Example:
        >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> Enrolment.of(examples)
        Enrolment(upper={'': 'float64[2]'}, lower={'': 'float64[2]'}, upper_size=3,
                  lower_size=8)
    """

    upper: Mapping[str, str]
    lower: Mapping[str, str]
    upper_size: int
    lower_size: int

    @classmethod
    def of(cls, examples: LocalExamples) -> "Enrolment":
        """Return what a device tells of its examples."""
        sizes = [len(jax.tree.leaves(level)[0]) for level in examples]
        return cls(_form(examples.upper), _form(examples.lower), *sizes)

    def encode(self) -> bytes:
        """Return it as a message."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, message: bytes) -> "Enrolment":
        """Return the enrolment of a message.

        Raises:
            RefusedError: if it is none.

        Example:
            >>> Enrolment.decode(b"[]")
            Traceback (most recent call last):
            ...
            fedbilevel.federation.transport.RefusedError: it is no enrolment
        """
        if len(message) > LONGEST:
            raise RefusedError(f"it is no enrolment: it has {len(message)} bytes")
        try:
            found = cls(**json.loads(message))
            sizes = found.upper_size, found.lower_size
            words = [*found.upper.values(), *found.lower.values()]
            fits = all(type(one) is int and 0 < one < 2**31 for one in sizes)
            fits = fits and all(isinstance(one, str) for one in words)
        except (TypeError, ValueError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise RefusedError("it is no enrolment")
        return found


class EnrolledDevices:
    """Devices whose data are elsewhere: the server has names, sizes and form.

    Args:
        enrolled: what each device has told, by name; their order numbers them.
        form: examples such as all devices must hold; how many does not matter.

    Raises:
        ValueError: if a device holds something else; names it.

    Example:
        >>> held = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> enrolled = {"a": Enrolment.of(held), "b": Enrolment.of(held)}
        >>> EnrolledDevices(enrolled, form=held).lower_sizes
        array([8, 8], dtype=int32)
    """

    def __init__(self, enrolled: Mapping[str, Enrolment], form: LocalExamples) -> None:
        if not enrolled:
            raise ValueError("nobody is enrolled; a federation needs at least one.")
        self.names = tuple(enrolled)
        self._enrolled = list(enrolled.values())
        self._form = form
        wanted = {level: _form(getattr(form, level)) for level in LocalExamples._fields}
        for name, found in enrolled.items():
            for level, right in wanted.items():
                if getattr(found, level) != right:
                    raise ValueError(
                        f"{name} holds {level} examples of {getattr(found, level)}, "
                        f"but the problem asks for {right}; let its loader return such."
                    )

    @property
    def device_count(self) -> int:
        """The number of devices, K."""
        return len(self.names)

    @property
    def in_memory(self) -> bool:
        """No: the data never come here."""
        return False

    @property
    def upper_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of upper examples of each device."""
        return np.array([one.upper_size for one in self._enrolled], np.int32)

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""
        return np.array([one.lower_size for one in self._enrolled], np.int32)

    def cohort(self, devices: Int[np.ndarray, "cohort"]) -> StoredData:
        """Return zeros of the form of the devices' data: their shapes are known."""

        def zeros(level: PyTree) -> StoredExamples:
            arrays = jax.tree.map(
                lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), level
            )
            count = len(devices)
            return StoredExamples(
                arrays, np.zeros(count, np.int32), np.ones(count, np.int32)
            )

        return StoredData(zeros(self._form.upper), zeros(self._form.lower))


def _form(level: PyTree) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape[1:])}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(level)
    }
