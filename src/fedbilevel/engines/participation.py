"""Who takes part in a round."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int


@runtime_checkable
class Participation(Protocol):
    """Chooses the devices of a round; the same arguments give the same devices."""

    def __call__(
        self, seed: int, round_number: int, device_count: int, /
    ) -> Int[np.ndarray, "cohort"]:
        """Return device numbers, none twice.

        Args:
            seed: the run's seed.
            round_number: counted from 0.
            device_count: how many devices are enrolled, numbered from 0.
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
    """So many devices a round, every set of that size as likely as another.

    Attributes:
        devices: how many take part.

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
                f"UniformSample needs a whole number of devices, not {self.devices!r}."
            )

    def __call__(
        self, seed: int, round_number: int, device_count: int, /
    ) -> Int[np.ndarray, "cohort"]:
        """Return the round's devices in ascending order."""
        if not 1 <= self.devices <= device_count:
            raise ValueError(
                f"UniformSample asks for {self.devices} devices a round, but "
                f"{device_count} are enrolled; ask for 1 to {device_count}."
            )
        # Seeded by the round, so that a resumed run chooses as an unbroken one.
        generator = np.random.default_rng([seed, round_number])
        return np.sort(generator.choice(device_count, self.devices, replace=False))
