"""Progress of tuning: its rounds with the time left, and the best settings so far."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedbilevel.commands.display import display
from fedbilevel.commands.progress import RoundClock
from fedbilevel.experiments.tuning import Goal
from fedbilevel.metrics.registry import title_of
from fedbilevel.plurals import count_noun
from fedbilevel.tuning.tuner import TuningProgress


@contextmanager
def tuning_progress(
    headline: str, goal: Goal, quiet: bool = False
) -> Iterator[Callable[[TuningProgress], None]]:
    """Print a headline, and yield a function that shows a finished batch of runs.

    Args:
        headline: first line.
        goal: metric to improve.
        quiet: whether to show nothing.

    Example:
        >>> with tuning_progress("a search", Goal(), quiet=True) as show:
        ...     pass
    """
    latest: TuningProgress | None = None
    clock = RoundClock(1)

    def lines(with_bar: bool) -> dict[str, str]:
        if latest is None:
            starting = "loading data, measuring curvature and compiling …"
            return {"rounds": starting}
        rounds = clock.text(latest.done, with_bar)
        return {"rounds": rounds, **lines_of(latest, goal)}

    with display(
        lambda: lines(True).items(),
        lambda: f"round {' | '.join(lines(False).values())}",
        quiet,
        headline=headline,
    ) as show_lines:

        def show(progress: TuningProgress) -> None:
            nonlocal latest, clock
            is_first = latest is None
            if is_first:
                clock = RoundClock(progress.total)
            clock.start(progress.done)
            latest = progress
            show_lines(is_first or progress.done == progress.total)

        yield show


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
