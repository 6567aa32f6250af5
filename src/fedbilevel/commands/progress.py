"""Progress of a run: its rounds with the time left, its costs and its metrics."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType

from fedbilevel.commands.display import STARTING, bar, display
from fedbilevel.commands.formatting import format_number
from fedbilevel.engines.costs import Costs
from fedbilevel.metrics.registry import title_of
from fedbilevel.tracking.records import Record


@contextmanager
def progress(
    headline: str,
    rounds: int,
    quiet: bool = False,
    also: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Callable[[int, Costs, Record | None], None]]:
    """Print a headline, and yield a function that shows a finished round.

    Its arguments are the number of finished rounds, their costs, and a record if there
    is one.

    Args:
        headline: first line.
        rounds: number of rounds of the run.
        quiet: whether to show nothing.
        also: more live lines in a terminal, by name; the mapping may change.

    Example:
        >>> with progress("a run", 3, quiet=True) as show:
        ...     pass
    """
    clock = RoundClock(rounds)
    latest: tuple[int, Costs] | None = None
    newest: Record | None = None

    def lines(with_bar: bool) -> dict[str, str]:
        if latest is None:
            return {"round": STARTING}
        return {
            "round": clock.text(latest[0], with_bar),
            "costs": _format_costs(latest[1]),
            "metrics": format_metrics(newest.metrics if newest is not None else {}),
        }

    with display(
        lambda: {**lines(True), **also}.items(),
        lambda: f"round {' | '.join(lines(False).values())}",
        quiet,
        headline=headline,
    ) as show_lines:

        def show(finished: int, costs: Costs, record: Record | None) -> None:
            nonlocal latest, newest
            latest = finished, costs
            if record is not None:
                is_first, newest = newest is None, record
                clock.start(finished)
                show_lines(is_first or finished >= rounds)

        yield show


class RoundClock:
    """A count of rounds with an estimate of the time left.

    The estimate starts at the first record: compilation happens before it.

    Example:
        >>> RoundClock(10).text(3)
        '3 of 10'
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._first: tuple[int, float] | None = None

    def start(self, finished: int) -> None:
        """Start the clock after a number of finished rounds, unless it is running."""
        self._first = self._first or (finished, time.monotonic())

    def text(self, finished: int, with_bar: bool = False) -> str:
        """Return the progress after a number of finished rounds."""
        time_now = time.monotonic()
        first, started_at = self._first or (finished, time_now)
        text = f"{finished} of {self.rounds}"
        if with_bar:
            text += f"  {bar(finished / self.rounds)}"
        if first < finished < self.rounds:
            seconds = (time_now - started_at) / (finished - first)
            left = timedelta(seconds=round(seconds * (self.rounds - finished)))
            text += f"  {left} left"
        return text


def _format_costs(costs: Costs) -> str:
    samples, sent = format_number(costs.samples), format_number(costs.bytes)
    return f"{samples} samples drawn, {sent}B sent"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return metrics as text on one line.

    Example:
        >>> format_metrics({"loss": 0.123456})
        'validation loss 0.1235'
    """
    return ", ".join(f"{title_of(name)} {value:.4g}" for name, value in metrics.items())
