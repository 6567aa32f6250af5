"""Progress of several runs side by side: in a terminal a line for each."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fedbilevel.commands.live import live
from fedbilevel.commands.progress import PLAIN_SECONDS, Passed, figures_in_words
from fedbilevel.tracking.records import Record


class BatchProgress:
    """The state of a batch of runs.

    Example:
        >>> state = BatchProgress(2)
        >>> state.began("runs/quick", rounds=100)
        >>> state.summary
        '0 of 2 runs done; runs/quick: loading data and compiling …'
        >>> state.ended("runs/quick")
        >>> state.summary
        '1 of 2 runs done'
    """

    def __init__(self, runs: int, printing: bool = False) -> None:
        """Begin with so many runs; `show` prints nothing unless `printing`."""
        self._runs, self._done = runs, 0
        self._printing, self._last = printing, time.monotonic()
        self._running: dict[str, tuple[Passed, Record | None]] = {}

    def began(self, name: str, rounds: int) -> None:
        """Add a run."""
        self._running[name] = Passed(rounds), None

    def measured(self, name: str, record: Record) -> None:
        """Take note of a run's newest record."""
        passed, _ = self._running[name]
        passed.measured(record.rounds)
        self._running[name] = passed, record

    def ended(self, name: str) -> None:
        """Count a run as done."""
        self._running.pop(name, None)
        self._done += 1

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each running run, and how far it is."""
        return [(name, _words(*state)) for name, state in self._running.items()]

    @property
    def summary(self) -> str:
        """All of it in one line."""
        running = (f"; {name}: {words}" for name, words in self.rows)
        return f"{self._done} of {self._runs} runs done{''.join(running)}"

    def show(self) -> None:
        """Print the summary, if the last one is long ago."""
        if self._printing and time.monotonic() - self._last >= PLAIN_SECONDS:
            self._last = time.monotonic()
            print(self.summary, file=sys.stderr, flush=True)


@contextmanager
def batch_progress(runs: int, quiet: bool) -> Iterator[BatchProgress]:
    """Yield what takes news of runs, and show it meanwhile.

    Args:
        runs: how many there are.
        quiet: whether to show nothing.

    Example:
        >>> with batch_progress(2, quiet=True) as state:
        ...     state.summary
        '0 of 2 runs done'
    """
    if quiet:
        yield BatchProgress(runs)
        return
    if not sys.stderr.isatty():
        yield BatchProgress(runs, printing=True)
        return
    state = BatchProgress(runs)

    def rows() -> list[tuple[str, str]]:
        return [*state.rows, ("all", state.summary.split(";")[0])]

    with live(rows):
        yield state


def _words(passed: Passed, record: Record | None) -> str:
    if record is None:
        return "loading data and compiling …"
    return f"{passed.words(record.rounds)}, {figures_in_words(record.figures)}"
