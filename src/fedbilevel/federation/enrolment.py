"""The enrolled devices of a federation: names, example counts and array shapes."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PyTree

from fedbilevel.data.devices import LocalExamples
from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.federation.transport import RefusedError, readable
from fedbilevel.mathematics.arrays import on_host

LONGEST = 2**16
"""Maximum bytes of an enrolment, which has some 50 for each array of an example."""


class Enrolment(NamedTuple):
    """The shapes, types and counts of a device's examples.

    Attributes:
        upper: shape and type of one upper example, for each array; empty if the device
            has no upper examples.
        lower: shape and type of one lower example, for each array; empty if the device
            has no lower examples.
        upper_size: number of upper examples, which may be 0.
        lower_size: number of lower examples, which may be 0.

    Example:
        >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> Enrolment.of(examples)
        Enrolment(upper={'': 'float64[2]'}, lower={'': 'float64[2]'}, upper_size=3,
                  lower_size=8)
        >>> Enrolment.of(examples._replace(upper=None)).levels
        ('lower',)
    """

    upper: Mapping[str, str]
    lower: Mapping[str, str]
    upper_size: int
    lower_size: int

    @classmethod
    def of(cls, examples: LocalExamples) -> "Enrolment":
        """Return the enrolment of a device with these examples.

        Raises:
            ValueError: if there are none.
        """
        if examples.upper is None and examples.lower is None:
            raise ValueError(
                "The device has neither upper nor lower examples. Give it examples of "
                "at least one loss, or remove it."
            )
        examples = jax.tree.map(on_host, examples)
        sizes = [
            0 if level is None else len(jax.tree.leaves(level)[0]) for level in examples
        ]
        return cls(_form(examples.upper), _form(examples.lower), *sizes)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of which the device has examples: upper, lower or both."""
        sizes = self.upper_size, self.lower_size
        pairs = zip(LocalExamples._fields, sizes, strict=True)
        return tuple(level for level, size in pairs if size)

    def misfits(self, form: LocalExamples) -> list[str]:
        """Return the levels whose examples have another shape or type.

        Args:
            form: examples with the required shapes and types.

        Example:
            >>> enrolment = Enrolment.of(LocalExamples(np.ones(3), None))
            >>> enrolment.misfits(LocalExamples(np.ones((1, 2)), np.ones(1)))
            ['upper']
        """
        right = Enrolment.of(form)
        return [
            level
            for level in self.levels
            if getattr(self, level) != getattr(right, level)
        ]

    def encode(self) -> bytes:
        """Return the enrolment as a message."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, message: bytes) -> "Enrolment":
        """Return the enrolment of a message.

        Raises:
            RefusedError: if the message is not a valid enrolment.

        Example:
            >>> Enrolment.decode(b"[]")
            Traceback (most recent call last):
            ...
            fedbilevel.federation.transport.RefusedError: the message is not a valid
            enrolment
        """
        if len(message) > LONGEST:
            raise RefusedError(
                f"the enrolment has {len(message)} bytes, but {LONGEST} are allowed"
            )
        try:
            enrolment = cls(**json.loads(message))
            sizes = enrolment.upper_size, enrolment.lower_size
            forms = [*enrolment.upper.values(), *enrolment.lower.values()]
            fits = all(type(size) is int and 0 <= size < 2**31 for size in sizes)
            fits = fits and any(sizes)
            fits = fits and all(isinstance(form, str) for form in forms)
            # A level without examples has no form.
            fits = fits and bool(enrolment.upper_size or not enrolment.upper)
            fits = fits and bool(enrolment.lower_size or not enrolment.lower)
        except (TypeError, ValueError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise RefusedError("the message is not a valid enrolment")
        return enrolment


class EnrolledDevices:
    """The enrolled devices: the server knows names, example counts and shapes only.

    Args:
        enrolled: enrolments by name; their order defines the device numbers.
        form: examples with the required shapes and types; their count is ignored.

    Raises:
        ValueError: if the examples of a device have another shape or type.

    Example:
        >>> held = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> enrolled = {"a": Enrolment.of(held), "b": Enrolment.of(held)}
        >>> EnrolledDevices(enrolled, form=held).lower_sizes
        array([8, 8], dtype=int32)
    """

    def __init__(self, enrolled: Mapping[str, Enrolment], form: LocalExamples) -> None:
        if not enrolled:
            raise ValueError("No device is enrolled; enrol at least one.")
        self.names = tuple(enrolled)
        self._enrolled = list(enrolled.values())
        self._form = jax.tree.map(on_host, form)
        expected = Enrolment.of(form)
        for name, enrolment in enrolled.items():
            for level in enrolment.misfits(form):
                actual, right = getattr(enrolment, level), getattr(expected, level)
                raise ValueError(
                    f"{name}: {level} examples are {readable(_text(actual))}, "
                    f"expected {_text(right)}. "
                    f'Fix what `examples("{name}")` returns.'
                )

    @property
    def device_count(self) -> int:
        """The number of devices, K."""
        return len(self.names)

    @property
    def in_memory(self) -> bool:
        """False: the server never holds the data."""
        return False

    @property
    def upper_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of upper examples of each device."""
        return np.array([site.upper_size for site in self._enrolled], np.int32)

    @property
    def lower_sizes(self) -> Int[np.ndarray, "devices"]:
        """The number of lower examples of each device."""
        return np.array([site.lower_size for site in self._enrolled], np.int32)

    def cohort(self, devices: Int[np.ndarray, "cohort"]) -> StoredData:
        """Return zeros with the shapes and types of the devices' data."""

        def zeros(level: PyTree) -> StoredExamples:
            count = len(devices)
            return StoredExamples(
                _placeholder(level), np.zeros(count, np.int32), np.ones(count, np.int32)
            )

        return StoredData(zeros(self._form.upper), zeros(self._form.lower))


def with_placeholders(
    examples: LocalExamples, form: LocalExamples | None
) -> LocalExamples:
    """Return examples with a row of zeros in place of a level without examples.

    Args:
        examples: examples of a device.
        form: examples with the required shapes and types; None if the device has
            examples of both levels.

    Raises:
        ValueError: if the device lacks a level and `form` is None.

    Example:
        >>> form = LocalExamples(np.ones((3, 2)), np.ones(3))
        >>> with_placeholders(LocalExamples(None, np.ones(5)), form).upper
        array([[0., 0.]])
    """
    for level, held in zip(LocalExamples._fields, examples, strict=True):
        if held is None:
            if form is None:
                raise ValueError(
                    f"The site has no {level} examples, so their shapes are not known. "
                    "Give Site the argument form: one example of each level, such as "
                    "the form of a Model."
                )
            zeros = _placeholder(jax.tree.map(on_host, getattr(form, level)))
            examples = examples._replace(**{level: zeros})
    return examples


def _placeholder(level: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), level)


def _form(level: PyTree) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape[1:])}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(level)
    }


def _text(form: Mapping[str, str]) -> str:
    return ", ".join(f"{path} {array}".strip() for path, array in form.items())
