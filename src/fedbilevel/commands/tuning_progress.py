"""Live progress of a search: lines that renew themselves, or one at times."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from fedbilevel.commands.live import live
from fedbilevel.commands.progress import PLAIN_SECONDS, Passed
from fedbilevel.experiments.tuning import Goal
from fedbilevel.tracking.titles import title_of
from fedbilevel.tuning.tuner import TuningProgress

Show: TypeAlias = Callable[[TuningProgress], None]
"""Shows how far a search is."""


@contextmanager
def tuning_progress(headline: str, goal: Goal, quiet: bool = False) -> Iterator[Show]:
    """Print what begins, and yield a function that shows a finished batch of runs.

    Args:
        headline: what begins.
        goal: what is improved.
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
    """Return what is shown of a search, by name.

    Example:
        >>> from fedbilevel import Trial
        >>> from fedbilevel.tuning.halving import Rung
        >>> best = Trial(4, 0, {"upper_rate": 31.4159}, {7: (0.25,)})
        >>> lines_of(TuningProgress(0, 4, Rung(7, 24, 1), 42, 840, (best,)), Goal())
        {'generation': '1 of 4, 24 settings for 7 rounds',
         'best': 'validation loss 0.25 after 7 rounds: upper_rate 31.4'}
    """
    rung = progress.rung
    words = (
        f"{progress.generation + 1} of {progress.generations}, {rung.settings} "
        f"settings for {rung.rounds} rounds"
    )
    best, told = progress.best, "none yet: every setting diverged"
    if best is not None:
        values = (f"{name} {value:.3g}" for name, value in best.settings.items())
        told = (
            f"{title_of(goal.metric)} {goal.score(best.score):.4g} after {best.rounds} "
            f"rounds: {', '.join(values)}"
        )
    return {"generation": words, "best": told}


def _live(goal: Goal) -> Iterator[Show]:
    latest: TuningProgress | None = None
    passed = Passed(1)

    def rows() -> list[tuple[str, str]]:
        words = {"rounds": "loading data, measuring curvature and compiling …"}
        if latest is not None:
            bar = passed.words(latest.done, bar=True)
            words = {"rounds": bar, **lines_of(latest, goal)}
        return [*words.items()]

    with live(rows):

        def show(progress: TuningProgress) -> None:
            nonlocal latest, passed
            if latest is None:
                passed = Passed(progress.total)
            passed.measured(progress.done)
            latest = progress

        yield show


def _plain(goal: Goal) -> Show:
    passed: Passed | None = None
    last = time.monotonic()

    def show(progress: TuningProgress) -> None:
        nonlocal passed, last
        first = passed is None
        passed = passed or Passed(progress.total)
        passed.measured(progress.done)
        now = time.monotonic()
        ends = progress.done == progress.total
        if not (first or ends) and now - last < PLAIN_SECONDS:
            return
        last = now
        said = " | ".join(lines_of(progress, goal).values())
        words = passed.words(progress.done)
        print(f"round {words} | {said}", file=sys.stderr, flush=True)

    return show
