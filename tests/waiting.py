"""Waiting for other processes, on a machine of any load.

A test waits for an event, never for a time: it polls until the event has happened. The
only time limit is `HANG`, which tells a process that hangs from one that is slow. A
test that passes never gets near it: on an idle machine the longest wait of the suite
takes about 30 s, and at a load of 10 about 5 times as long.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HANG = 900.0
"""Seconds after which a process that has not answered counts as hanging."""


def until(
    happened: Callable[[], bool],
    instead: Callable[[], str] = lambda: "nothing",
    pause: float = 0.1,
) -> None:
    """Wait until an event has happened; fail after `HANG` seconds.

    Args:
        happened: returns whether the event has happened.
        instead: returns what has happened so far, for the message of a failure.
        pause: seconds between two looks.
    """
    deadline = time.monotonic() + HANG
    while not happened():
        late = time.monotonic() > deadline
        assert not late, f"not within {HANG:g} s; so far: {instead()[-2000:]}"
        time.sleep(pause)


@contextmanager
def no_hang() -> Iterator[None]:
    """Interrupt this process where it is if a block takes more than `HANG` seconds."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"it took more than {HANG:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
