"""Handling of Ctrl-C: the first stops after a round, the second at once."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RETRY_SECONDS = 0.01
"""Seconds after which a lost interruption is raised again."""
END_SECONDS = 5.0
"""Seconds after the second signal until a process that cannot handle it ends."""
SIGNALS = signal.SIGINT, signal.SIGTERM
_watched: list["Interrupted"] = []
"""The request whose signals this process watches, if any."""


@contextmanager
def interruption(after: str = "round", limit: str = "") -> Iterator["Interrupted"]:
    """Yield a function that returns the first Ctrl-C or SIGTERM; a second one kills.

    A second one also ends a compiled program in mid-work, after END_SECONDS.

    Args:
        after: name of the step that is still completed, for the message.
        limit: time limit of this step, for the message.

    Example:
        >>> with interruption() as interrupted:
        ...     interrupted()
        0
    """
    interrupted = Interrupted(after, limit)
    handlers = [signal.signal(number, interrupted.note) for number in SIGNALS]
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
        with _watch(interrupted):
            yield interrupted
    finally:
        sys.unraisablehook = original_hook
        for timer in timers:
            timer.cancel()
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)


class Interrupted:
    """A request to stop, from a signal.

    Attributes:
        after: name of the step that is still completed.
        limit: time limit of this step.
        is_ending: whether Python has handled a second signal.

    Example:
        >>> Interrupted()()
        0
    """

    def __init__(self, after: str = "round", limit: str = "") -> None:
        self._code, self.after, self.limit = 0, after, limit
        self.is_ending = False

    def __call__(self) -> int:
        """Return the exit code that shells give to the signal; 0 without one."""
        return self._code

    def note(self, number: int, frame: FrameType | None) -> None:
        """Store the exit code of the signal, and print when the command stops."""
        self._code = 128 + number
        print(
            f"\nStopping after this {self.after}{self.limit}; press Ctrl-C again to "
            "stop now",
            file=sys.stderr,
        )
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.is_ending = True
        signal.default_int_handler(number, frame)


@contextmanager
def _watch(interrupted: Interrupted) -> Iterator[None]:
    """End the process after a second signal that the main thread cannot handle.

    Python calls handlers between two operations of the main thread. A compiled program
    of JAX is one operation, which may take hours.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    # A byte with the number of each signal, written when the signal arrives.
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, args=(reader, interrupted), daemon=True)
    thread.start()
    _watched.append(interrupted)
    try:
        yield
    finally:
        _watched.pop()
        signal.set_wakeup_fd(previous)
        # A process that user code forked may hold a copy of the socket for hours.
        writer.shutdown(socket.SHUT_RDWR)
        writer.close()
        thread.join()
        reader.close()


def _forget_signals() -> None:
    """Handle signals as usual in a forked process, which shares the parent's socket."""
    if _watched:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_signals)


def watch(reader: socket.socket, interrupted: Interrupted) -> None:
    """End the process END_SECONDS after a second signal, unless it was handled.

    Args:
        reader: socket from which the numbers of signals are read, one byte for each;
            the function returns when its other end closes.
        interrupted: request to stop.

    Example:
        >>> reader, writer = socket.socketpair()
        >>> writer.close()
        >>> watch(reader, Interrupted())
        >>> reader.close()
    """
    count = last = 0
    until: float | None = None
    while True:
        left = None if until is None else max(0.01, until - time.monotonic())
        reader.settimeout(left)
        try:
            numbers = reader.recv(64)
        except TimeoutError:
            if not interrupted.is_ending:
                print(
                    f"\nStopped in the middle of this {interrupted.after}. Resume from "
                    "the last checkpoint.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(128 + last)
            # The next signal may find the main thread in another long operation.
            until, interrupted.is_ending = None, False
            continue
        if not numbers:
            return
        received = [number for number in numbers if number in SIGNALS]
        count += len(received)
        if received and count > 1 and until is None:
            last, until = received[-1], time.monotonic() + END_SECONDS
