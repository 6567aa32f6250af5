"""Live progress: in a terminal lines that renew themselves, elsewhere one at times."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import TypeAlias

from fedbilevel.commands.formatting import short
from fedbilevel.commands.live import live
from fedbilevel.engines.costs import Costs
from fedbilevel.tracking.records import Record
from fedbilevel.tracking.titles import title_of

PLAIN_SECONDS = 10.0
"""Between two lines where there is no terminal."""


Show: TypeAlias = Callable[[int, Costs, Record | None], None]
"""Shows how many rounds are done, what was spent, and what was measured, if it was."""


@contextmanager
def progress(
    headline: str,
    rounds: int,
    quiet: bool = False,
    also: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Show]:
    """Say what begins, and yield a function that shows a finished round.

    Args:
        headline: what begins.
        rounds: how many there will be.
        quiet: whether to show nothing.
        also: what else a terminal shows, by name; it may change meanwhile.

    Example:
        >>> with progress("a run", 3, quiet=True) as show:
        ...     pass
    """
    if quiet:
        yield lambda done, costs, record: None
        return
    print(headline, file=sys.stderr)
    if sys.stderr.isatty():
        yield from _live(rounds, also)
    else:
        yield _plain(rounds)


def _live(rounds: int, also: Mapping[str, str]) -> Iterator[Show]:
    passed = Passed(rounds)
    latest: tuple[int, Costs] | None = None
    figures: Mapping[str, float] = {}

    # Rounds may take milliseconds: words are found for those that are shown.
    def rows() -> list[tuple[str, str]]:
        words = {"round": "loading data and compiling …"}
        if latest is not None:
            words = {
                "round": passed.words(latest[0], bar=True),
                "spent": _spent(latest[1]),
                "measured": figures_in_words(figures),
            }
        return [*{**words, **also}.items()]

    with live(rows):

        def show(done: int, costs: Costs, record: Record | None) -> None:
            nonlocal latest, figures
            latest = done, costs
            if record is not None:
                figures = record.figures
                passed.measured(done)

        yield show


def _plain(rounds: int) -> Show:
    passed = Passed(rounds)
    last = -PLAIN_SECONDS

    def show(done: int, costs: Costs, record: Record | None) -> None:
        nonlocal last
        now = time.monotonic()
        if record is None:
            return
        passed.measured(done)
        if now - last < PLAIN_SECONDS and done < rounds:
            return
        last = now
        words = passed.words(done)
        figures = figures_in_words(record.figures)
        print(
            f"round {words} | {_spent(costs)} | {figures}",
            file=sys.stderr,
            flush=True,
        )

    return show


class Passed:
    """How far a run is, and when it will be done.

    Time left is reckoned from the first measurement on: before it, much is compiled.

    Example:
        >>> Passed(10).rounds
        10
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._first: tuple[int, float] | None = None

    def measured(self, done: int) -> None:
        """Take note that so many rounds were done and measured."""
        self._first = self._first or (done, time.monotonic())

    def words(self, done: int, bar: bool = False) -> str:
        """Return what is to be said after so many rounds."""
        now = time.monotonic()
        begun, since = self._first or (done, now)
        said = f"{done} of {self.rounds}"
        if bar:
            filled = round(24 * done / self.rounds)
            said += f"  {'━' * filled}{'╌' * (24 - filled)}"
        if begun < done < self.rounds:
            left = (now - since) / (done - begun) * (self.rounds - done)
            said += f"  {timedelta(seconds=round(left))} left"
        return said


def _spent(costs: Costs) -> str:
    return f"{short(costs.samples)} samples drawn, {short(costs.bytes)}B sent"


def figures_in_words(figures: Mapping[str, float]) -> str:
    """Return measured values as a line shows them.

    Example:
        >>> figures_in_words({"loss": 0.123456})
        'validation loss 0.1235'
    """
    return ", ".join(f"{title_of(name)} {one:.4g}" for name, one in figures.items())
