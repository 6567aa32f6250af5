"""Counts of excluded uploads: in how many of its rounds each device was left out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class _Version:
    """A state of the counts, as what was added to it since.

    A version refers to the next one, and none to the one before: versions that no
    snapshot refers to are freed.
    """

    later: "_Addition | None" = None


class _Addition(NamedTuple):
    participants: list[int]
    excluded: list[int]
    result: _Version


@dataclass(frozen=True, slots=True, eq=False)
class ExclusionSnapshot:
    """The counts of a run as they were at one time.

    Attributes:
        counts: of the run, which go on growing.
        version: of the counts.
        participations: pairs of a device and a round until then.

    Example:
        >>> counts = ExclusionCounts(device_count=4)
        >>> before = counts.snapshot()
        >>> grown = counts.add(np.array([0, 2]), excluded=[2])
        >>> before.summary(run_rounds=1).excluded
        0
    """

    counts: "ExclusionCounts"
    version: _Version
    participations: int

    def summary(self, run_rounds: int) -> Exclusions:
        """Return the totals, and the devices with the largest share of exclusions.

        Args:
            run_rounds: how many rounds the run had had.
        """
        counts = self.counts.at(self.version)

        def rank(count: DeviceExclusions) -> tuple[bool, float, int, int]:
            share = count.excluded / count.rounds
            rare = not count.is_frequent(run_rounds)
            return rare, -share, -count.excluded, count.device

        return Exclusions(
            sum(count.excluded for count in counts),
            self.participations,
            self.counts.device_count,
            tuple(nsmallest(MOST_LISTED, counts, key=rank)),
            sum(count.is_frequent(run_rounds) for count in counts),
        )


class ExclusionCounts:
    """Counts a run's participants and those that were excluded, device by device.

    It is written in place: with a million enrolled devices, a round costs what its
    participants cost. A snapshot costs nothing until it is read: later additions are
    then subtracted.

    Args:
        device_count: the number of enrolled devices.

    Example:
        >>> counts = ExclusionCounts(device_count=4)
        >>> for number in range(3):
        ...     grown = counts.add(np.array([0, 2]), excluded=[2])
        >>> counts.snapshot().summary(run_rounds=3).devices
        (DeviceExclusions(device=2, excluded=3, rounds=3),)
    """

    def __init__(self, device_count: int) -> None:
        self._rounds = np.zeros(device_count, np.int32)
        self._excluded = np.zeros(device_count, np.int32)
        self._participations = 0
        self._version = _Version()

    @property
    def device_count(self) -> int:
        """The number of enrolled devices."""
        return len(self._rounds)

    def add(
        self, participants: Int[np.ndarray, "participants"], excluded: Iterable[int]
    ) -> list[int]:
        """Count a round; return the devices whose count is now a power of two.

        A warning for each of these, and for no others, keeps a log short: 190
        exclusions of a device are eight lines.
        """
        self._rounds[participants] += 1
        self._participations += len(participants)
        excluded, grown = list(excluded), []
        for device in excluded:
            self._excluded[device] += 1
            count = int(self._excluded[device])
            if count & (count - 1) == 0:
                grown.append(device)
        # Only devices that were ever excluded are part of a summary.
        known = participants[self._excluded[participants] > 0].tolist()
        if known:
            result = _Version()
            self._version.later = _Addition(known, excluded, result)
            self._version = result
        return grown

    def of(self, device: int) -> DeviceExclusions:
        """Return the counts of one device."""
        excluded, rounds = self._excluded[device], self._rounds[device]
        return DeviceExclusions(device, int(excluded), int(rounds))

    def snapshot(self) -> ExclusionSnapshot:
        """Return the counts as they are now, for later."""
        return ExclusionSnapshot(self, self._version, self._participations)

    def at(self, version: _Version) -> list[DeviceExclusions]:
        """Return the counts of a version, of each device that was excluded by then."""
        devices = np.flatnonzero(self._excluded)
        excluded, rounds = (
            dict(zip(devices.tolist(), counts[devices].tolist(), strict=True))
            for counts in (self._excluded, self._rounds)
        )
        while version.later is not None:
            for device in version.later.participants:
                rounds[device] -= 1
            for device in version.later.excluded:
                excluded[device] -= 1
            version = version.later.result
        return [
            DeviceExclusions(device, count, rounds[device])
            for device, count in excluded.items()
            if count
        ]

    def notes(self) -> dict[str, Any]:
        """Return the counts as JSON can hold them."""
        alike = bool(np.all(self._rounds == self._rounds[0]))
        return {
            "rounds": int(self._rounds[0]) if alike else self._rounds.tolist(),
            "excluded": {
                str(device): int(self._excluded[device])
                for device in np.flatnonzero(self._excluded)
            },
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
        counts._participations = int(counts._rounds.sum())
        for device, excluded in notes["excluded"].items():
            counts._excluded[int(device)] = excluded
        return counts
