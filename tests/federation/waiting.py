"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def until(
    happened: Callable[[], bool],
    seconds: float,
    instead: Callable[[], str] = lambda: "nothing",
) -> None:
    """Wait until something happened; an assertion fails if it takes too long.

    Args:
        happened: whether it has.
        seconds: after which it takes too long.
        instead: what is known to have happened then.
    """
    ends = time.monotonic() + seconds
    while not happened():
        late = time.monotonic() > ends
        assert not late, f"not within {seconds} s; instead: {instead()[-2000:]}"
        time.sleep(0.2)
