"""Progress of a run: live lines in a terminal, else a line every 10 seconds."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import TypeAlias

from fedbilevel.commands.formatting import format_number
from fedbilevel.commands.live import live
from fedbilevel.engines.costs import Costs
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of

PLAIN_SECONDS = 10.0
"""Seconds between two lines without a terminal."""


Show: TypeAlias = Callable[[int, Costs, Record | None], None]
"""Shows the number of finished rounds, their costs, and a record if there is one."""


@contextmanager
def progress(
    headline: str,
    rounds: int,
    quiet: bool = False,
    also: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Show]:
    """Print a headline, and yield a function that shows a finished round.

    Args:
        headline: first line.
        rounds: number of rounds of the run.
        quiet: whether to show nothing.
        also: more live lines in a terminal, by name; the mapping may change.

    Example:
        >>> with progress("a run", 3, quiet=True) as show:
        ...     pass
    """
    if quiet:
        yield lambda rounds, costs, record: None
        return
    print(headline, file=sys.stderr)
    if sys.stderr.isatty():
        yield from _live(rounds, also)
    else:
        yield _plain(rounds)


def _live(rounds: int, also: Mapping[str, str]) -> Iterator[Show]:
    clock = RoundClock(rounds)
    latest: tuple[int, Costs] | None = None
    metrics: Mapping[str, float] = {}

    # Rounds may take milliseconds: only frames that are shown are formatted.
    def rows() -> list[tuple[str, str]]:
        lines = {"round": "loading data and compiling …"}
        if latest is not None:
            lines = {
                "round": clock.text(latest[0], bar=True),
                "costs": _format_costs(latest[1]),
                "metrics": format_metrics(metrics),
            }
        return [*{**lines, **also}.items()]

    with live(rows):

        def show(finished: int, costs: Costs, record: Record | None) -> None:
            nonlocal latest, metrics
            latest = finished, costs
            if record is not None:
                metrics = record.metrics
                clock.start(finished)

        yield show


def _plain(rounds: int) -> Show:
    clock = RoundClock(rounds)
    printed_at = -PLAIN_SECONDS

    def show(finished: int, costs: Costs, record: Record | None) -> None:
        nonlocal printed_at
        time_now = time.monotonic()
        if record is None:
            return
        clock.start(finished)
        if time_now - printed_at < PLAIN_SECONDS and finished < rounds:
            return
        printed_at = time_now
        metrics = format_metrics(record.metrics)
        print(
            f"round {clock.text(finished)} | {_format_costs(costs)} | {metrics}",
            file=sys.stderr,
            flush=True,
        )

    return show


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

    def text(self, finished: int, bar: bool = False) -> str:
        """Return the progress after a number of finished rounds."""
        time_now = time.monotonic()
        first, started_at = self._first or (finished, time_now)
        text = f"{finished} of {self.rounds}"
        if bar:
            filled = round(24 * finished / self.rounds)
            text += f"  {'━' * filled}{'╌' * (24 - filled)}"
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
