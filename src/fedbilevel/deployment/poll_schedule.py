"""The pauses between two status requests: longer while nothing changes."""

import time
from collections.abc import Callable

SHORTEST, LONGEST = 1.0, 30.0
"""Seconds of a pause, at least and at most."""
OF_QUIET = 0.1
"""Pause as a fraction of the time since the last change."""
LONGEST_BUSY, OF_AGE = 10.0, 0.002
"""Bound in seconds, and fraction of the job's age, of the shortest pause of a job that
always changes."""


class PollSchedule:
    """The pauses between the status requests of a job.

    The server's `audit.log` has a line for each request. A pause is a tenth of the time
    since the last change, so a change is noticed late by at most a tenth of the time
    that it took. A job that always changes is polled less often as it gets older.

    Args:
        clock: function that returns the seconds of a monotonic clock.

    Example:
        >>> times = iter([0.0, 1.0, 100.0, 1000.0])
        >>> schedule = PollSchedule(lambda: next(times))
        >>> [schedule.pause() for _ in range(3)]
        [1.0, 10.0, 30.0]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._changed = clock()

    def note_change(self) -> None:
        """Shorten the next pauses, because something has changed."""
        self._changed = self._clock()

    def pause(self) -> float:
        """Return the seconds until the next request."""
        current = self._clock()
        quiet = OF_QUIET * (current - self._changed)
        age = OF_AGE * (current - self._begun)
        return max(SHORTEST, min(LONGEST, quiet), min(LONGEST_BUSY, age))
