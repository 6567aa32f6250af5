"""Counts of excluded uploads: in how many of its rounds each device was left out."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

MOST_LISTED = 20
"""Devices that a summary lists."""
FEWEST = 3
"""Exclusions below which a device of a long run is not frequently excluded."""


class DeviceExclusions(NamedTuple):
    """How often one device was excluded.

    Attributes:
        device: its number.
        excluded: rounds in which an exchange did without its upload.
        rounds: rounds in which it was a participant.

    Example:
        >>> DeviceExclusions(device=3, excluded=190, rounds=200).is_frequent(200)
        True
    """

    device: int
    excluded: int
    rounds: int

    def is_frequent(self, run_rounds: int) -> bool:
        """Return whether the device was excluded in more than half of its rounds.

        At least three exclusions are required, so that a device that is sampled once
        and excluded once does not count; of a shorter run, as many as it has rounds.
        """
        return self.excluded >= min(FEWEST, run_rounds) and (
            2 * self.excluded > self.rounds
        )


class Exclusions(NamedTuple):
    """A summary of the excluded uploads of a run.

    Attributes:
        excluded: pairs of a device and a round in which it was excluded.
        participations: pairs of a device and a round in which it was a participant.
        enrolled: how many devices there are.
        devices: the devices that were excluded in the largest share of their rounds,
            at most 20; those that were frequently excluded come first.
        frequent: how many devices were excluded in more than half of their rounds
            (`DeviceExclusions.is_frequent`), listed or not.

    Example:
        >>> Exclusions().devices
        ()
    """

    excluded: int = 0
    participations: int = 0
    enrolled: int = 0
    devices: tuple[DeviceExclusions, ...] = ()
    frequent: int = 0


class ExclusionCounts:
    """Counts a run's participants and those that were excluded, device by device.

    It is written in place: with a million enrolled devices, a round costs what its
    participants cost.

    Args:
        device_count: the number of enrolled devices.

    Example:
        >>> counts = ExclusionCounts(device_count=4)
        >>> for number in range(3):
        ...     grown = counts.add(np.array([0, 2]), excluded=[2])
        >>> counts.summary(run_rounds=3).devices
        (DeviceExclusions(device=2, excluded=3, rounds=3),)
    """

    def __init__(self, device_count: int) -> None:
        self._rounds = np.zeros(device_count, np.int32)
        self._excluded: dict[int, int] = {}

    def add(
        self, participants: Int[np.ndarray, "participants"], excluded: Iterable[int]
    ) -> list[int]:
        """Count a round; return the devices whose count is now a power of two.

        A warning for each of these, and for no others, keeps a log short: 190
        exclusions of a device are eight lines.
        """
        self._rounds[participants] += 1
        grown = []
        for device in excluded:
            count = self._excluded[device] = self._excluded.get(device, 0) + 1
            if count & (count - 1) == 0:
                grown.append(device)
        return grown

    def of(self, device: int) -> DeviceExclusions:
        """Return the counts of one device."""
        excluded = self._excluded.get(device, 0)
        return DeviceExclusions(device, excluded, int(self._rounds[device]))

    def summary(self, run_rounds: int) -> Exclusions:
        """Return the totals, and the devices with the largest share of exclusions.

        Args:
            run_rounds: how many rounds the run has had.
        """
        counts = list(map(self.of, self._excluded))

        def rank(count: DeviceExclusions) -> tuple[bool, float, int, int]:
            share = count.excluded / count.rounds
            rare = not count.is_frequent(run_rounds)
            return rare, -share, -count.excluded, count.device

        return Exclusions(
            sum(self._excluded.values()),
            int(self._rounds.sum()),
            len(self._rounds),
            tuple(nsmallest(MOST_LISTED, counts, key=rank)),
            sum(count.is_frequent(run_rounds) for count in counts),
        )

    def notes(self) -> dict[str, Any]:
        """Return the counts as JSON can hold them."""
        alike = bool(np.all(self._rounds == self._rounds[0]))
        return {
            "rounds": int(self._rounds[0]) if alike else self._rounds.tolist(),
            "excluded": {str(device): n for device, n in self._excluded.items()},
        }

    @classmethod
    def read(cls, notes: Mapping[str, Any], device_count: int) -> "ExclusionCounts":
        """Return the counts that were written down.

        Example:
            >>> counts = ExclusionCounts.read({"rounds": 5, "excluded": {"1": 2}}, 2)
            >>> counts.of(1)
            DeviceExclusions(device=1, excluded=2, rounds=5)
        """
        counts = cls(device_count)
        counts._rounds[:] = notes["rounds"]
        counts._excluded = {int(one): n for one, n in notes["excluded"].items()}
        return counts
