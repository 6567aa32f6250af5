"""Progress of tuning: live lines in a terminal, else a line every 10 seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from fedbilevel.commands.live import live
from fedbilevel.commands.progress import PLAIN_SECONDS, RoundClock
from fedbilevel.experiments.tuning import Goal
from fedbilevel.plurals import count_noun
from fedbilevel.tracking.titles import title_of
from fedbilevel.tuning.tuner import TuningProgress

Show: TypeAlias = Callable[[TuningProgress], None]
"""Shows the progress of a search."""


@contextmanager
def tuning_progress(headline: str, goal: Goal, quiet: bool = False) -> Iterator[Show]:
    """Print a headline, and yield a function that shows a finished batch of runs.

    Args:
        headline: first line.
        goal: metric to improve.
        quiet: whether to show nothing.

    Example:
        >>> with tuning_progress("a search", Goal(), quiet=True) as show:
        ...     pass
    """
    if quiet:
        yield lambda progress: None
        return
    print(headline, file=sys.stderr)
    if sys.stderr.isatty():
        yield from _live(goal)
    else:
        yield _plain(goal)


def lines_of(progress: TuningProgress, goal: Goal) -> dict[str, str]:
    """Return the live lines of a search, by name.

    Example:
        >>> from fedbilevel import Trial
        >>> from fedbilevel.tuning.halving import Rung
        >>> best = Trial(4, 0, {"upper_rate": 31.4159}, {7: (0.25,)})
        >>> lines_of(TuningProgress(0, 4, Rung(7, 24, 1), 42, 840, (best,)), Goal())
        {'generation': '1 of 4, 24 settings for 7 rounds',
         'best': 'validation loss 0.25 after 7 rounds: upper_rate 31.4'}
    """
    rung = progress.rung
    generation = (
        f"{progress.generation + 1} of {progress.generations}, "
        f"{count_noun(rung.settings, 'setting')} for {count_noun(rung.rounds, 'round')}"
    )
    best, text = progress.best, "none yet: every setting diverged"
    if best is not None:
        values = (f"{name} {value:.3g}" for name, value in best.settings.items())
        text = (
            f"{title_of(goal.metric)} {goal.score(best.score):.4g} after "
            f"{count_noun(best.rounds, 'round')}: {', '.join(values)}"
        )
    return {"generation": generation, "best": text}


def _live(goal: Goal) -> Iterator[Show]:
    latest: TuningProgress | None = None
    clock = RoundClock(1)

    def rows() -> list[tuple[str, str]]:
        lines = {"rounds": "loading data, measuring curvature and compiling …"}
        if latest is not None:
            bar = clock.text(latest.done, bar=True)
            lines = {"rounds": bar, **lines_of(latest, goal)}
        return [*lines.items()]

    with live(rows):

        def show(progress: TuningProgress) -> None:
            nonlocal latest, clock
            if latest is None:
                clock = RoundClock(progress.total)
            clock.start(progress.done)
            latest = progress

        yield show


def _plain(goal: Goal) -> Show:
    clock: RoundClock | None = None
    printed_at = time.monotonic()

    def show(progress: TuningProgress) -> None:
        nonlocal clock, printed_at
        is_first = clock is None
        clock = clock or RoundClock(progress.total)
        clock.start(progress.done)
        time_now = time.monotonic()
        is_last = progress.done == progress.total
        if not (is_first or is_last) and time_now - printed_at < PLAIN_SECONDS:
            return
        printed_at = time_now
        lines = " | ".join(lines_of(progress, goal).values())
        text = f"round {clock.text(progress.done)} | {lines}"
        print(text, file=sys.stderr, flush=True)

    return show
