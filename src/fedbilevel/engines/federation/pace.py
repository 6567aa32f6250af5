"""How long an exchange waits for devices that are slower than the others."""

from collections.abc import Sequence
from math import inf

SHORTEST = 1.0
"""Seconds that late answers are waited for at least, however quick the others were."""


def closes_after(
    took: Sequence[float], expected: int, quorum: int, patience: float
) -> float:
    """Return after how many seconds an exchange closes, by those who have answered.

    It is a multiple of the time that half of all expected devices took, not of the time
    of the first few: else a quorum of hasty devices, fewer than half, would shut out
    all others for good.

    Args:
        took: seconds of each answer that counts, in their order.
        expected: how many devices have answered, or may yet.
        quorum: how many answers an exchange needs at least.
        patience: the multiple.

    Example:
        >>> closes_after([0.1, 0.2], expected=5, quorum=2, patience=3.0)
        inf
        >>> closes_after([0.1, 0.2, 4.0], expected=5, quorum=2, patience=3.0)
        12.0
    """
    middle = expected // 2
    if len(took) < max(quorum, middle + 1):
        return inf
    return max(SHORTEST, patience * took[middle])
