"""Counts of the rounds in which each device was excluded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

MOST_LISTED = 20
"""The most devices that a summary lists."""
FEWEST = 3
"""The fewest exclusions of a frequently excluded device in a long run."""


class DeviceExclusions(NamedTuple):
    """The number of exclusions of one device.

    Attributes:
        device: device number.
        excluded: number of rounds with an exchange that excluded its upload.
        rounds: number of rounds in which it was a participant.

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
        and excluded once does not count. In a run of fewer rounds, all rounds are
        required.
        """
        return self.excluded >= min(FEWEST, run_rounds) and (
            2 * self.excluded > self.rounds
        )


class Exclusions(NamedTuple):
    """A summary of the excluded uploads of a run.

    Attributes:
        excluded: number of pairs of a device and a round in which it was excluded.
        participations: number of pairs of a device and a round in which it was a
            participant.
        enrolled: number of devices.
        devices: the devices that were excluded in the largest share of their rounds,
            at most 20, frequently excluded devices first.
        frequent: number of devices that were excluded in more than half of their rounds
            (`DeviceExclusions.is_frequent`), listed or not.
    """

    excluded: int = 0
    participations: int = 0
    enrolled: int = 0
    devices: tuple[DeviceExclusions, ...] = ()
    frequent: int = 0


@dataclass(slots=True, eq=False)
class _Version:
    """A state of the counts, represented by the later additions.

    A version refers to the next version and not to the previous one, so versions
    without a snapshot are freed.
    """

    later: "_Addition | None" = None


class _Addition(NamedTuple):
    participants: list[int]
    excluded: list[int]
    result: _Version


@dataclass(frozen=True, slots=True, eq=False)
class ExclusionSnapshot:
    """A snapshot of the counts of a run.

    Attributes:
        counts: the counts of the run, which continue to grow.
        version: version of the counts at the time of the snapshot.
        participations: number of pairs of a device and a round at that time.

    Example:
        >>> counts = ExclusionCounts(device_count=4)
        >>> before = counts.snapshot()
        >>> due = counts.add(np.array([0, 2]), excluded=[2])
        >>> before.summary(run_rounds=1).excluded
        0
    """

    counts: "ExclusionCounts"
    version: _Version
    participations: int

    def summary(self, run_rounds: int) -> Exclusions:
        """Return the totals, and the devices with the largest share of exclusions.

        Args:
            run_rounds: number of rounds of the run at the time of the snapshot.
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
    """Counts of participations and exclusions of a run, by device.

    Counts are updated in place: with a million devices, the time of a round depends
    only on the number of its participants. A snapshot takes no time until it is read;
    later additions are then subtracted.

    Args:
        device_count: number of devices.

    Example:
        >>> counts = ExclusionCounts(device_count=4)
        >>> for number in range(3):
        ...     due = counts.add(np.array([0, 2]), excluded=[2])
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
        """The number of devices."""
        return len(self._rounds)

    def add(
        self, participants: Int[np.ndarray, "participants"], excluded: Iterable[int]
    ) -> list[int]:
        """Count a round; return the excluded devices for which a warning is due.

        A warning is due if the count of a device is a power of two, which keeps a log
        short: 190 exclusions of a device give eight lines.
        """
        self._rounds[participants] += 1
        self._participations += len(participants)
        excluded, due = list(excluded), []
        for device in excluded:
            self._excluded[device] += 1
            count = int(self._excluded[device])
            if count & (count - 1) == 0:
                due.append(device)
        # Only devices that were ever excluded are part of a summary.
        known = participants[self._excluded[participants] > 0].tolist()
        if known:
            result = _Version()
            self._version.later = _Addition(known, excluded, result)
            self._version = result
        return due

    def of(self, device: int) -> DeviceExclusions:
        """Return the counts of one device."""
        excluded, rounds = self._excluded[device], self._rounds[device]
        return DeviceExclusions(device, int(excluded), int(rounds))

    def snapshot(self) -> ExclusionSnapshot:
        """Return a snapshot of the counts."""
        return ExclusionSnapshot(self, self._version, self._participations)

    def at(self, version: _Version) -> list[DeviceExclusions]:
        """Return the counts of all devices that were excluded before a version."""
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
        """Return the counts as values that JSON supports."""
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
        """Return the counts from their `notes`.

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
