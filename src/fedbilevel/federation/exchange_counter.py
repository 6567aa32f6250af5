"""The number of exchanges that a site has answered, of all runs and processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbilevel.atomic_write import append

COUNT = "exchanges.txt"
"""The file of all runs' directory at a site: a line for each exchange, in order."""
LOCK = ".answering"
WAIT = 60.0
"""Seconds to wait for another process, which holds the lock while it writes a line."""


class ExchangeCounter:
    """Counts the exchanges that a site has answered in all of its runs.

    Jobs of several runs answer at the same time, each in a process of its own. Whoever
    looks at the count and adds to it holds a lock in between, or several would take the
    last free place. What a server has read stays read: the count outlives the directories
    of the runs.

    Args:
        directory: that the directories of all runs are below; none to count in memory.

    Example:
        >>> count = ExchangeCounter(None)
        >>> with count.held() as number:
        ...     count.add("first 0 0")
        >>> with count.held() as number:
        ...     number
        1
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._number = self._read = 0

    @contextmanager
    def held(self) -> Iterator[int]:
        """Give the number, to which nobody else adds meanwhile.

        Raises:
            OSError: the file cannot be read, or another process does not let go.
        """
        if self._directory is None:
            yield self._number
            return
        # Here, as a site whose runs are in memory does without the package.
        from filelock import FileLock

        self._directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self._directory / LOCK, timeout=WAIT):
            self._catch_up(self._directory / COUNT)
            yield self._number

    def add(self, exchange: str) -> None:
        """Count one more, with the lock held; `exchange` says which, for operators."""
        if self._directory is None:
            self._number += 1
        else:
            append(self._directory / COUNT, exchange.encode())

    def _catch_up(self, file: Path) -> None:
        """Read what was added since the last time."""
        size = file.stat().st_size if file.exists() else 0
        if size < self._read:
            # Removed or shortened by the operator.
            self._number = self._read = 0
        if size > self._read:
            with file.open("rb") as opened:
                opened.seek(self._read)
                added = opened.read()
            self._number += added.count(b"\n")
            self._read += len(added)
