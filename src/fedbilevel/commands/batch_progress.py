"""Progress of a batch of runs: in a terminal a live line for each run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedbilevel.commands.display import STARTING, display
from fedbilevel.commands.progress import RoundClock, format_metrics
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

    def __init__(self, runs: int) -> None:
        """Start a batch of `runs` runs."""
        self._runs, self._finished = runs, 0
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


@contextmanager
def batch_progress(
    runs: int, quiet: bool
) -> Iterator[tuple[BatchProgress, Callable[[bool], None]]]:
    """Yield the state of a batch, and a function to call when it may have changed.

    Args:
        runs: number of runs.
        quiet: whether to show nothing.

    Example:
        >>> with batch_progress(2, quiet=True) as (state, show):
        ...     state.summary
        '0 of 2 runs finished'
    """
    state = BatchProgress(runs)

    def rows() -> list[tuple[str, str]]:
        return [*state.rows, ("all", state.summary.split(";")[0])]

    with display(rows, lambda: state.summary, quiet) as show:
        yield state, show


def _text(clock: RoundClock, record: Record | None) -> str:
    if record is None:
        return STARTING
    return f"{clock.text(record.rounds)}, {format_metrics(record.metrics)}"
