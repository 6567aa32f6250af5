"""Participation: the selection of the devices of a round."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from fedbilevel.plurals import there_are


@runtime_checkable
class Participation(Protocol):
    """A function that selects the devices of a round, equal for equal arguments."""

    def __call__(
        self, seed: int, round_number: int, device_count: int, /
    ) -> Int[np.ndarray, "cohort"]:
        """Return distinct device numbers.

        Args:
            seed: seed of the run.
            round_number: round number, counted from 0.
            device_count: number of devices. Devices are numbered from 0.
        """


@dataclass(frozen=True)
class FullParticipation:
    """All devices in every round, as in the paper.

    Example:
        >>> from fedbilevel import FullParticipation
        >>> FullParticipation()(0, 0, 3)
        array([0, 1, 2])
    """

    def __call__(
        self, seed: int, round_number: int, device_count: int, /
    ) -> Int[np.ndarray, "cohort"]:
        """Return all device numbers."""
        return np.arange(device_count)


@dataclass(frozen=True)
class UniformSample:
    """A uniform random sample of devices in each round, without replacement.

    Attributes:
        devices: number of participants of a round.

    Example:
        >>> from fedbilevel import UniformSample
        >>> sample = UniformSample(devices=3)
        >>> len(sample(0, 0, 1_000_000))
        3
        >>> bool((sample(0, 7, 1_000_000) == sample(0, 7, 1_000_000)).all())
        True
    """

    devices: int

    def __post_init__(self) -> None:
        if not isinstance(self.devices, int | np.integer):
            raise TypeError(
                f"devices of UniformSample is {self.devices!r}. Pass a whole number."
            )

    def __call__(
        self, seed: int, round_number: int, device_count: int, /
    ) -> Int[np.ndarray, "cohort"]:
        """Return the selected device numbers in ascending order."""
        if not 1 <= self.devices <= device_count:
            raise ValueError(
                f"devices of UniformSample is {self.devices}, but "
                f"{there_are(device_count, 'device')}. Pass a number from 1 to "
                f"{device_count}."
            )
        # The seed depends on the round, so that a resumed run draws the same sample.
        generator = np.random.default_rng([seed, round_number])
        return np.sort(generator.choice(device_count, self.devices, replace=False))
