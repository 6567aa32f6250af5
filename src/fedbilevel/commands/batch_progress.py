"""Progress of a batch of runs: in a terminal a live line for each run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fedbilevel.commands.live import live
from fedbilevel.commands.progress import PLAIN_SECONDS, RoundClock, format_metrics
from fedbilevel.tracking.records import Record


class BatchProgress:
    """The state of a batch of runs.

    Example:
        >>> state = BatchProgress(2)
        >>> state.add("runs/quick", rounds=100)
        >>> state.summary
        '0 of 2 runs finished; runs/quick: loading data and compiling …'
        >>> state.finish("runs/quick")
        >>> state.summary
        '1 of 2 runs finished'
    """

    def __init__(self, runs: int, printing: bool = False) -> None:
        """Start a batch of `runs` runs; `show` prints only if `printing`."""
        self._runs, self._finished = runs, 0
        self._printing, self._printed_at = printing, time.monotonic()
        self._running: dict[str, tuple[RoundClock, Record | None]] = {}

    def add(self, name: str, rounds: int) -> None:
        """Add a running run."""
        self._running[name] = RoundClock(rounds), None

    def update(self, name: str, record: Record) -> None:
        """Store the newest record of a run."""
        clock, _ = self._running[name]
        clock.start(record.rounds)
        self._running[name] = clock, record

    def finish(self, name: str) -> None:
        """Count a run as finished."""
        self._running.pop(name, None)
        self._finished += 1

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Name and progress of each running run."""
        return [(name, _text(*state)) for name, state in self._running.items()]

    @property
    def summary(self) -> str:
        """Progress of the batch in one line."""
        running = (f"; {name}: {text}" for name, text in self.rows)
        return f"{self._finished} of {self._runs} runs finished{''.join(running)}"

    def show(self) -> None:
        """Print the summary, at most every `PLAIN_SECONDS`."""
        if self._printing and time.monotonic() - self._printed_at >= PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            print(self.summary, file=sys.stderr, flush=True)


@contextmanager
def batch_progress(runs: int, quiet: bool) -> Iterator[BatchProgress]:
    """Yield the state of a batch, and show it.

    Args:
        runs: number of runs.
        quiet: whether to show nothing.

    Example:
        >>> with batch_progress(2, quiet=True) as state:
        ...     state.summary
        '0 of 2 runs finished'
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


def _text(clock: RoundClock, record: Record | None) -> str:
    if record is None:
        return "loading data and compiling …"
    return f"{clock.text(record.rounds)}, {format_metrics(record.metrics)}"
