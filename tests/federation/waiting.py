"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def until(happened: Callable[[], bool], seconds: float) -> None:
    """Wait until something happened; an assertion fails if it takes too long."""
    ends = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.2)
