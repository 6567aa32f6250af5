"""The number of exchanges that a site has answered, of all runs and processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANSWERED = "answered.txt"
"""The file of a run's folder at a site: a line for each task, in order."""
LOCK = ".answering"
WAIT = 60.0
"""Seconds to wait for another process, which holds the lock while it writes a line."""


class AnswerCount:
    """Counts the exchanges that a site has answered in all of its runs.

    Jobs of several runs answer at the same time, each in a process of its own. Whoever
    looks at the count and adds to it holds a lock in between, or several would take the
    last free place.

    Args:
        folder: that all lists of answered tasks are below; none to count in memory.

    Example:
        >>> count = AnswerCount(None)
        >>> with count.held() as number:
        ...     count.add_in_memory()
        >>> with count.held() as number:
        ...     number
        1
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._in_memory = 0
        # Bytes and lines of each list: only what was added is read.
        self._known: dict[Path, tuple[int, int]] = {}

    @contextmanager
    def held(self) -> Iterator[int]:
        """Give the number, to which nobody else adds meanwhile.

        Raises:
            OSError: the lists cannot be read, or another process does not let go.
        """
        if self._folder is None:
            yield self._in_memory
            return
        # Here, as a site whose runs are in memory does without the package.
        from filelock import FileLock

        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / LOCK, timeout=WAIT):
            yield self._lines()

    def add_in_memory(self) -> None:
        """Count one more, where there is no folder."""
        self._in_memory += 1

    def _lines(self) -> int:
        assert self._folder is not None
        # Without those of a run whose folder an operator has removed.
        found = {}
        for file in self._folder.rglob(ANSWERED):
            size = file.stat().st_size
            read, lines = self._known.get(file, (0, 0))
            if size < read:
                read, lines = 0, 0
            if size > read:
                with file.open("rb") as opened:
                    opened.seek(read)
                    added = opened.read()
                # A line that was not finished is read again.
                end = added.rfind(b"\n") + 1
                read, lines = read + end, lines + added.count(b"\n")
            found[file] = read, lines
        self._known = found
        return sum(lines for _, lines in found.values())
