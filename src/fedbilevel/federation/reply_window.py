"""The time for which a server waits for replies, and early closing for stragglers."""

import time
from collections.abc import Callable, Sequence
from math import inf

SHORTEST = 1.0
"""Minimum seconds that an exchange waits for late answers."""


class ReplyWindow:
    """The time for which a server waits for the replies to its messages.

    Without stragglers it ends at the timeout. With a straggler factor it ends earlier,
    once enough devices have answered and the others take much longer than they did.

    Args:
        timeout: maximum seconds.
        straggler_factor: multiple of the time in which half of the devices answered,
            after which the others are not awaited; None to wait for all of them.
        clock: function that returns the seconds of a monotonic clock.

    Example:
        >>> seconds = iter([0.0, 2.0, 4.0, 4.0])
        >>> window = ReplyWindow(60.0, 3.0, clock=lambda: next(seconds))
        >>> window.accept()
        >>> window.update(awaited=1, quorum=1)  # one of two devices
        >>> window.left()
        56.0
        >>> window.closed_early
        False
    """

    def __init__(
        self,
        timeout: float,
        straggler_factor: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout, self._straggler_factor = timeout, straggler_factor
        self._clock, self._began = clock, clock()
        self._closes = inf
        self._took: list[float] = []

    def left(self) -> float:
        """Return the seconds for which replies are still awaited."""
        return min(self._timeout, self._closes) - self._elapsed()

    def accept(self) -> None:
        """Note that a reply that counts has arrived."""
        self._took.append(self._elapsed())

    def update(self, awaited: int, quorum: int, *, is_enough: bool = True) -> None:
        """Set the end of the window, given the replies so far.

        Args:
            awaited: number of devices that may still answer.
            quorum: minimum number of answers.
            is_enough: False if answers that arrived may be excluded later, so that
                the window must stay open.
        """
        if self._straggler_factor is None or not is_enough:
            self._closes = inf
            return
        expected = len(self._took) + awaited
        self._closes = closes_after(
            self._took, expected, quorum, self._straggler_factor
        )

    @property
    def closed_early(self) -> bool:
        """True if the window has ended before the timeout."""
        return self.left() <= 0 and self._elapsed() < self._timeout

    def _elapsed(self) -> float:
        return self._clock() - self._began


def closes_after(
    took: Sequence[float], expected: int, quorum: int, straggler_factor: float
) -> float:
    """Return the seconds after which an exchange closes, given the answers so far.

    It is a multiple of the time that half of all expected devices took, not of the time
    of the first few: otherwise a fast quorum of fewer than half of the devices would
    always exclude the others.

    Args:
        took: seconds of each accepted answer, in ascending order.
        expected: number of devices that have answered or may still answer.
        quorum: minimum number of answers.
        straggler_factor: multiple of the median time.

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
