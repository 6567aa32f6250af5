"""Garbage collection in processes that exchange messages for days."""

import gc

EVERY = 5
"""Exchanges between two calls of `gc.collect()`, which take 3 to 10 ms each."""


class GarbageCollector:
    """Run `gc.collect()` every few exchanges: messages leave cycles that pin buffers.

    Python collects all generations only after some 70,000 new objects, which is
    thousands of messages, each of which pins its buffers.

    Existing objects are frozen and never collected, so create this object while no
    message is in memory.

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
        # Freeze modules: to traverse them takes 0.2 s.
        gc.freeze()

    def collect(self) -> None:
        """Count an exchange; call `gc.collect()` every fifth time."""
        self._exchanges += 1
        if self._exchanges % EVERY == 0:
            gc.collect()
