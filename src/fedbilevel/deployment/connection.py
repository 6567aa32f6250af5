"""A server that does not answer: say so, each time later, and give up at last."""

import time
from collections.abc import Callable


class UnreachableError(RuntimeError):
    """A server that has not answered for too long; the message says since when.

    Example:
        >>> str(UnreachableError("no answer for 3600 seconds"))
        'no answer for 3600 seconds'
    """


FIRST_NOTICE = 15.0
"""Seconds without an answer after which it is said; then twice as many each time."""


class Connection:
    """Counts the seconds for which a server has not answered.

    Args:
        most: seconds after which to give up.
        now: returns seconds, of a clock that does not jump.

    Example:
        >>> times = iter([0.0, 20.0])
        >>> reach = Connection(3600.0, lambda: next(times))
        >>> reach.missed("connection refused")
        >>> reach.missed("connection refused")
        'no answer for 20 seconds (connection refused); giving up after 3600'
    """

    def __init__(self, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now = most, now
        self._since: float | None = None
        self._notice = FIRST_NOTICE

    def answered(self) -> None:
        """Forget what was missed."""
        self._since, self._notice = None, FIRST_NOTICE

    def missed(self, reason: str) -> str | None:
        """Count a question without an answer; return what to print, if it is time.

        Raises:
            UnreachableError: there has been none for too long.
        """
        now = self._now()
        if self._since is None:
            self._since = now
        seconds = now - self._since
        if seconds > self._most:
            raise UnreachableError(
                f"{reason}; so it was for {seconds:.0f} seconds. Start the server, and "
                "give the same command again: the run continues."
            )
        if seconds < self._notice:
            return None
        self._notice = 2 * seconds
        return (
            f"no answer for {seconds:.0f} seconds ({reason}); giving up after "
            f"{self._most:.0f}"
        )
