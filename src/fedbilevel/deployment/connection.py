"""Time without an answer of the server: print notices, then give up."""

import time
from collections.abc import Callable


class UnreachableError(RuntimeError):
    """The server has not answered for too long."""


FIRST_NOTICE = 15.0
"""Seconds without an answer before the first notice; doubled after each notice."""


class Connection:
    """A timer of the seconds for which the server has not answered.

    Args:
        timeout: seconds after which to give up.
        clock: function that returns the seconds of a monotonic clock.

    Example:
        >>> times = iter([0.0, 20.0])
        >>> connection = Connection(3600.0, lambda: next(times))
        >>> connection.note_miss("connection refused")
        >>> connection.note_miss("connection refused")
        'no answer from the server for 20 seconds (connection refused); giving up after
        3600 seconds'
    """

    def __init__(
        self, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout, self._clock = timeout, clock
        self._since: float | None = None
        self._notice = FIRST_NOTICE

    def note_answer(self) -> None:
        """Reset the timer."""
        self._since, self._notice = None, FIRST_NOTICE

    def note_miss(self, reason: str) -> str | None:
        """Note a request without an answer; return a notice to print, if it is time.

        Raises:
            UnreachableError: if the timeout has passed.
        """
        time_of_miss = self._clock()
        if self._since is None:
            self._since = time_of_miss
        seconds = time_of_miss - self._since
        if seconds > self._timeout:
            raise UnreachableError(
                f"No answer from the server for {seconds:.0f} seconds: {reason}. Start "
                "the server, and give the same command again to resume the run."
            )
        if seconds < self._notice:
            return None
        self._notice = 2 * seconds
        return (
            f"no answer from the server for {seconds:.0f} seconds ({reason}); giving "
            f"up after {self._timeout:.0f} seconds"
        )
