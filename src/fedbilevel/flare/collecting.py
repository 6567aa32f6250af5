"""Python's collection of garbage, in processes that exchange messages for days."""

import gc

EVERY = 5
"""Exchanges between two collections, which take some 3 ms each."""


class Garbage:
    """What messages leave behind in cycles, collected every few of them.

    Python itself looks through all objects after some 70,000 new ones, which is
    thousands of messages; what these leave are few objects, but they hold buffers.

    Example:
        >>> garbage = Garbage()
        >>> garbage.collect()
        >>> gc.get_freeze_count() > 0
        True
        >>> gc.unfreeze()
    """

    def __init__(self) -> None:
        self._exchanges = 0

    def collect(self) -> None:
        """Count an exchange, and collect if it is time to."""
        if self._exchanges % EVERY == 0:
            gc.collect()
        if self._exchanges == 0:
            # Modules and compiled programs stay: to look through them takes 0.2 s.
            gc.freeze()
        self._exchanges += 1
