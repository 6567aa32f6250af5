"""Who takes part in a federation, and what the server knows of their data."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PyTree

from fedbilevel.data.devices import LocalExamples
from fedbilevel.data.examples import StoredData, StoredExamples


class Enrolment(NamedTuple):
    """What the server knows of a device's data: how many, of which form.

    Attributes:
        upper: a tree of shapes and types of one example of the upper loss.
        lower: the same of the lower loss.
        upper_size: how many examples of the upper loss there are.
        lower_size: how many of the lower loss.

    Example:
        >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> Enrolment.of(examples).lower_size
        8
    """

    upper: PyTree
    lower: PyTree
    upper_size: int
    lower_size: int

    @classmethod
    def of(cls, examples: LocalExamples) -> "Enrolment":
        """Return what a device tells of its examples."""

        def form(level: PyTree) -> PyTree:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), level
            )

        sizes = [len(jax.tree.leaves(level)[0]) for level in examples]
        return cls(form(examples.upper), form(examples.lower), *sizes)


class EnrolledDevices:
    """Devices whose data are elsewhere: the server has their names, sizes and form.

    Device numbers follow the order of names, so that every process knows them.

    Example:
        >>> examples = LocalExamples(upper=np.ones((3, 2)), lower=np.ones((8, 2)))
        >>> enrolled = {"b": Enrolment.of(examples), "a": Enrolment.of(examples)}
        >>> EnrolledDevices(enrolled).names
        ('a', 'b')
    """

    def __init__(self, enrolled: Mapping[str, Enrolment]) -> None:
        if not enrolled:
            raise ValueError("nobody is enrolled; a federation needs at least one.")
        self.names = tuple(sorted(enrolled))
        self._enrolled = [enrolled[name] for name in self.names]
        first = self._enrolled[0]
        for name, other in zip(self.names, self._enrolled, strict=True):
            if (other.upper, other.lower) != (first.upper, first.lower):
                raise ValueError(
                    f"{name} holds examples of {other.upper} and {other.lower}, but "
                    f"{self.names[0]} of {first.upper} and {first.lower}; all devices "
                    "must hold the same kind."
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
        first = self._enrolled[0]

        def zeros(level: PyTree) -> StoredExamples:
            arrays = jax.tree.map(
                lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), level
            )
            count = len(devices)
            return StoredExamples(
                arrays, np.zeros(count, np.int32), np.ones(count, np.int32)
            )

        return StoredData(zeros(first.upper), zeros(first.lower))
