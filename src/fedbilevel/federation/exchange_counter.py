"""The exchanges that a site has answered, in all runs and processes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbilevel.atomic_write import append, read_appended

COUNT = "exchanges.txt"
"""File of a site with a line for each exchange of any run, in order: run, round,
exchange and charge (`epsilon_account`)."""
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
        ...     count.add("first 0 0", "none")
        >>> with count.lock() as number:
        ...     number
        1
        >>> count.charges
        Counter({'none': 1})
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self._read = 0
        self._charges: Counter[str] = Counter()

    @property
    def charges(self) -> Counter[str]:
        """The number of answered exchanges of each charge, as of the last lock."""
        return self._charges.copy()

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the counter, and yield the count.

        Raises:
            OSError: if the file cannot be read, or another process holds the lock for
                60 seconds.
        """
        if self.directory is None:
            yield self._charges.total()
            return
        # Imported here, because a site without a directory does not need the package.
        from filelock import FileLock

        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self.directory / LOCK, timeout=WAIT):
            self._catch_up(self.directory / COUNT)
            yield self._charges.total()

    def add(self, exchange: str, charge: str) -> None:
        """Count an exchange, with the lock held.

        Args:
            exchange: run, round and exchange, for operators.
            charge: noised answers of the exchange.
        """
        if self.directory is None:
            self._charges[charge] += 1
        else:
            append(self.directory / COUNT, f"{exchange} {charge}".encode())

    def _catch_up(self, file: Path) -> None:
        """Read the lines that were added since the last call."""
        lines, end = read_appended(file, self._read)
        if end < self._read:
            # The operator has removed or shortened the file.
            self._charges.clear()
            lines, end = read_appended(file, 0)
        for line in lines:
            _, _, _, *charge = line.decode(errors="replace").split(" ", 3) + [""] * 3
            self._charges[charge[0]] += 1
        self._read = end
