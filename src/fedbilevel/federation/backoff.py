"""Patience with slow and absent devices: how long one is waited for, and how often."""

from collections.abc import Collection, Sequence
from math import inf

LONGEST = 64
"""The most exchanges that a device is skipped for."""
FORGIVEN = 0.2
"""The part of a device's misses that an answer makes good."""


class Absences:
    """Who missed how many exchanges of late, and how long they are skipped for.

    After k misses a device is skipped for 2ᵏ⁻¹ − 1 exchanges, at most 64: none after
    the first, one after the second. An answer makes a fifth of them good, so that one
    that is late every second time is not waited for every second time. Counted in
    exchanges and not in seconds, so that a clock that jumps changes nothing.

    Example:
        >>> absences = Absences()
        >>> for _ in range(2):
        ...     absences.note([0, 1], missing=[1])
        >>> absences.without_skipped([0, 1])
        [0]
    """

    def __init__(self) -> None:
        self._misses: dict[int, float] = {}
        self._skips: dict[int, int] = {}

    def without_skipped(self, devices: Sequence[int], at_least: int = 1) -> list[int]:
        """Return the devices to ask now; those left out have waited one exchange.

        Where too few would be asked, all are.
        """
        asked = []
        for device in devices:
            left = self._skips.get(device, 0)
            if left:
                self._skips[device] = left - 1
            else:
                asked.append(device)
        return asked if len(asked) >= at_least else list(devices)

    def note(self, asked: Sequence[int], missing: Collection[int]) -> None:
        """Remember who answered and who did not."""
        for device in asked:
            misses = self._misses.get(device, 0.0)
            if device not in missing:
                self._misses[device] = (1 - FORGIVEN) * misses
                self._skips.pop(device, None)
                continue
            self._misses[device] = misses + 1
            self._skips[device] = min(LONGEST, 2 ** int(misses) - 1)


SHORTEST = 1.0
"""Seconds that late answers are waited for at least, however quick the others were."""


def closes_after(
    took: Sequence[float], expected: int, quorum: int, straggler_factor: float
) -> float:
    """Return after how many seconds an exchange closes, by those who have answered.

    It is a multiple of the time that half of all expected devices took, not of the time
    of the first few: else a quorum of hasty devices, fewer than half, would shut out
    all others for good.

    Args:
        took: seconds of each answer that counts, in their order.
        expected: how many devices have answered, or may yet.
        quorum: how many answers an exchange needs at least.
        straggler_factor: the multiple.

    Example:
        >>> closes_after([0.1, 0.2], expected=5, quorum=2, straggler_factor=3.0)
        inf
        >>> closes_after([0.1, 0.2, 4.0], expected=5, quorum=2, straggler_factor=3.0)
        12.0
    """
    middle = expected // 2
    if len(took) < max(quorum, middle + 1):
        return inf
    return max(SHORTEST, straggler_factor * took[middle])
