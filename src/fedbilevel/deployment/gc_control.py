"""Python's collection of garbage, in processes that exchange messages for days."""

import gc

EVERY = 5
"""Exchanges between two collections, which take 3 to 10 ms each."""


class GarbageCollector:
    """What messages leave behind in cycles, collected every few of them.

    Python itself looks through all objects after some 70,000 new ones, which is
    thousands of messages; what these leave are few objects, but they hold buffers.

    What there is when this is made stays for good, so make it while no message is under
    way.

    Example:
        >>> garbage = GarbageCollector()
        >>> gc.get_freeze_count() > 0
        True
        >>> garbage.collect()
        >>> gc.unfreeze()
    """

    def __init__(self) -> None:
        self._exchanges = 0
        gc.collect()
        # Modules stay: to look through them takes 0.2 s.
        gc.freeze()

    def collect(self) -> None:
        """Count an exchange, and collect if it is time to."""
        self._exchanges += 1
        if self._exchanges % EVERY == 0:
            gc.collect()
