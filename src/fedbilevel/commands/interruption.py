"""The first Ctrl-C ends a round, the second ends the program."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 0.01
"""Seconds after which an interruption that went nowhere comes again."""


@contextmanager
def interruption(after: str = "round") -> Iterator["Interrupted"]:
    """Take note of the first Ctrl-C or SIGTERM; let the second end the program.

    Args:
        after: what is still finished, for the message.

    Example:
        >>> with interruption() as interrupted:
        ...     interrupted()
        0
    """
    interrupted = Interrupted(after)
    signals = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(one, interrupted.note) for one in signals]
    told = sys.unraisablehook
    again: list[threading.Timer] = []

    def insist(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_type is not KeyboardInterrupt:
            told(lost)
            return
        # JAX has Python call it at every collection of garbage; what is raised there is
        # told in a traceback and forgotten. Later, since here it would be lost too.
        again.append(threading.Timer(AGAIN, os.kill, [os.getpid(), signal.SIGINT]))
        again[-1].start()

    sys.unraisablehook = insist
    try:
        yield interrupted
    finally:
        sys.unraisablehook = told
        for timer in again:
            timer.cancel()
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


class Interrupted:
    """Whether the run was asked to stop.

    Example:
        >>> Interrupted()()
        0
    """

    def __init__(self, after: str = "round") -> None:
        self._noted, self._after = 0, after

    def __call__(self) -> int:
        """Return the exit code that shells give to the signal; 0 without one."""
        return self._noted

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember it, and say what happens."""
        self._noted = 128 + number
        print(
            f"\nstopping after this {self._after}; once more to stop now",
            file=sys.stderr,
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
