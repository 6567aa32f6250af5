"""Exponential backoff for absent devices."""

from collections.abc import Collection, Sequence

LONGEST = 64
"""Maximum number of consecutive exchanges for which a device is skipped."""
FORGIVEN = 0.2
"""Fraction of a device's misses that an answer cancels."""


class Absences:
    """The recent misses of devices, and the exchanges for which they are skipped.

    After k misses a device is skipped for 2ᵏ⁻¹ − 1 exchanges, at most 64: none after
    the first, one after the second. An answer cancels a fifth of the misses, so that a
    device that is late in every second exchange does not delay every second exchange.
    The backoff counts exchanges, not seconds, so that clock jumps do not matter.

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
        """Return the devices to contact, and count the exchange for the skipped ones.

        If fewer than `at_least` devices remain, all are returned.
        """
        contacted = []
        for device in devices:
            left = self._skips.get(device, 0)
            if left:
                self._skips[device] = left - 1
            else:
                contacted.append(device)
        return contacted if len(contacted) >= at_least else list(devices)

    def note(self, contacted: Sequence[int], missing: Collection[int]) -> None:
        """Note which contacted devices did not answer."""
        for device in contacted:
            misses = self._misses.get(device, 0.0)
            if device not in missing:
                self._misses[device] = (1 - FORGIVEN) * misses
                self._skips.pop(device, None)
                continue
            self._misses[device] = misses + 1
            self._skips[device] = min(LONGEST, 2 ** int(misses) - 1)
