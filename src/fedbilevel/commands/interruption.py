"""Handling of Ctrl-C: the first stops after a round, the second at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RETRY_SECONDS = 0.01
"""Seconds after which a lost interruption is raised again."""


@contextmanager
def interruption(after: str = "round") -> Iterator["Interrupted"]:
    """Yield a function that returns the first Ctrl-C or SIGTERM; a second one kills.

    Args:
        after: name of the step that is still completed, for the message.

    Example:
        >>> with interruption() as interrupted:
        ...     interrupted()
        0
    """
    interrupted = Interrupted(after)
    signals = signal.SIGINT, signal.SIGTERM
    handlers = [signal.signal(number, interrupted.note) for number in signals]
    original_hook = sys.unraisablehook
    timers: list[threading.Timer] = []

    def retry(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is not KeyboardInterrupt:
            original_hook(lost)
            return
        # Python calls JAX at every garbage collection and ignores what is raised there.
        # The signal is sent again later: raised here it would be lost, too.
        arguments = os.getpid(), signal.SIGINT
        timers.append(threading.Timer(RETRY_SECONDS, os.kill, arguments))
        timers[-1].start()

    sys.unraisablehook = retry
    try:
        yield interrupted
    finally:
        sys.unraisablehook = original_hook
        for timer in timers:
            timer.cancel()
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)


class Interrupted:
    """A request to stop, from a signal.

    Example:
        >>> Interrupted()()
        0
    """

    def __init__(self, after: str = "round") -> None:
        self._code, self._after = 0, after

    def __call__(self) -> int:
        """Return the exit code that shells give to the signal; 0 without one."""
        return self._code

    def note(self, number: int, frame: FrameType | None) -> None:
        """Store the exit code of the signal, and print when the command stops."""
        self._code = 128 + number
        print(
            f"\nStopping after this {self._after}; press Ctrl-C again to stop now",
            file=sys.stderr,
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
