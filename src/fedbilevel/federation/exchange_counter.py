"""The number of exchanges that a site has answered, in all runs and processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbilevel.atomic_write import append

COUNT = "exchanges.txt"
"""File of a site with a line for each exchange of any run, in order."""
LOCK = ".answering"
WAIT = 60.0
"""Timeout in seconds for the lock, which is held while a line is written."""


class ExchangeCounter:
    """A counter of the exchanges that a site has answered in all of its runs.

    Several processes may answer at the same time, so a process holds a lock while it
    reads and increments the count. The count outlives the run directories, because the
    server keeps the answers.

    Args:
        directory: parent of all run directories; None to count in memory.

    Example:
        >>> count = ExchangeCounter(None)
        >>> with count.lock() as number:
        ...     count.add("first 0 0")
        >>> with count.lock() as number:
        ...     number
        1
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._number = self._read = 0

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the counter, and yield the count.

        Raises:
            OSError: if the file cannot be read, or another process holds the lock for
                60 seconds.
        """
        if self._directory is None:
            yield self._number
            return
        # Imported here, because a site without a directory does not need the package.
        from filelock import FileLock

        self._directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self._directory / LOCK, timeout=WAIT):
            self._catch_up(self._directory / COUNT)
            yield self._number

    def add(self, exchange: str) -> None:
        """Count an exchange, with the lock held; `exchange` is a text for operators."""
        if self._directory is None:
            self._number += 1
        else:
            append(self._directory / COUNT, exchange.encode())

    def _catch_up(self, file: Path) -> None:
        """Read the lines that were added since the last call."""
        size = file.stat().st_size if file.exists() else 0
        if size < self._read:
            # The operator has removed or shortened the file.
            self._number = self._read = 0
        if size > self._read:
            with file.open("rb") as opened:
                opened.seek(self._read)
                added = opened.read()
            self._number += added.count(b"\n")
            self._read += len(added)
