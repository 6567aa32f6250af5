"""Progress of a diagnosis: a live line, or a line every 10 seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log

from fedbilevel.commands.live import live
from fedbilevel.commands.progress import PLAIN_SECONDS
from fedbilevel.metrics.obstacles import DiagnosisProgress, Stage
from fedbilevel.plurals import count_noun

BAR = 24
"""Width of a bar in characters."""


@contextmanager
def diagnosis_progress(
    quiet: bool = False,
) -> Iterator[Callable[[DiagnosisProgress], None]]:
    """Yield a function that shows the progress of a diagnosis on standard error.

    Args:
        quiet: whether to show nothing.

    Example:
        >>> with diagnosis_progress(quiet=True) as report:
        ...     report(DiagnosisProgress(Stage.LOWER, 1, residual=0.1, goal=1e-9))
    """
    if quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        yield from _live()
    else:
        yield _plain()


def line_of(progress: DiagnosisProgress, bar: bool = False) -> str:
    """Return the progress of a diagnosis in one line.

    Example:
        >>> line_of(DiagnosisProgress(Stage.ADJOINT, 9, residual=1e-4, goal=1e-8))
        'part 3 of 4, global adjoint: residual 0.0001, goal 1e-08 | 9 exchanges'
    """
    stages = list(Stage)
    number = stages.index(progress.stage) + 1
    filled = ""
    if bar:
        length = round(BAR * _share(progress))
        filled = f"{'━' * length}{'╌' * (BAR - length)}  "
    return (
        f"part {number} of {len(stages)}, {progress.stage.value}: {filled}residual "
        f"{progress.residual:.2g}, goal {progress.goal:.2g} | "
        f"{count_noun(progress.exchanges, 'exchange')}"
    )


def _share(progress: DiagnosisProgress) -> float:
    # Conjugate gradients lower the logarithm of the residual about evenly.
    if progress.residual <= progress.goal:
        return 1.0
    return max(0.0, log(progress.residual) / log(progress.goal))


def _live() -> Iterator[Callable[[DiagnosisProgress], None]]:
    latest: DiagnosisProgress | None = None

    def rows() -> list[tuple[str, str]]:
        first = "loading data and compiling …"
        line = first if latest is None else line_of(latest, bar=True)
        return [("diagnosis", line)]

    with live(rows, transient=True):

        def report(progress: DiagnosisProgress) -> None:
            nonlocal latest
            latest = progress

        yield report


def _plain() -> Callable[[DiagnosisProgress], None]:
    printed_at, stage = time.monotonic(), None

    def report(progress: DiagnosisProgress) -> None:
        nonlocal printed_at, stage
        time_now = time.monotonic()
        if progress.stage is stage and time_now - printed_at < PLAIN_SECONDS:
            return
        printed_at, stage = time_now, progress.stage
        print(line_of(progress), file=sys.stderr, flush=True)

    return report
