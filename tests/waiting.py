"""Waiting for other processes, on a machine of any load.

A test waits for an event, never for a time: it polls until the event has happened. The
only time limit is `HANG`, which distinguishes a hanging process from a slow one. It is
far above the waits of the suite: on an idle machine the longest takes about 30 s, and
at a load of 10 about 5 times as long.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HANG = 900.0
"""Seconds after which a process counts as hanging."""


def until(
    happened: Callable[[], bool],
    instead: Callable[[], str] = lambda: "nothing",
    pause: float = 0.1,
) -> None:
    """Wait until an event has happened; fail after `HANG` seconds.

    Args:
        happened: function that returns True after the event.
        instead: function that returns the state so far, for the failure message.
        pause: seconds between two polls.
    """
    deadline = time.monotonic() + HANG
    while not happened():
        late = time.monotonic() > deadline
        assert not late, f"no event within {HANG:g} s; so far: {instead()[-2000:]}"
        time.sleep(pause)


@contextmanager
def no_hang() -> Iterator[None]:
    """Interrupt this process if a block takes more than `HANG` seconds."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"the block took more than {HANG:g} seconds")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
