"""Progress of a diagnosis: its part, and the residual of the solve."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log

from fedbilevel.commands.display import STARTING, bar, display
from fedbilevel.metrics.obstacles import DiagnosisProgress, Stage
from fedbilevel.plurals import count_noun


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
    latest: DiagnosisProgress | None = None

    def line(with_bar: bool) -> str:
        return STARTING if latest is None else line_of(latest, with_bar)

    with display(
        lambda: [("diagnosis", line(True))],
        lambda: line(False),
        quiet,
        transient=True,
    ) as show:

        def report(progress: DiagnosisProgress) -> None:
            nonlocal latest
            before, latest = latest, progress
            show(before is None or before.stage is not progress.stage)

        yield report


def line_of(progress: DiagnosisProgress, with_bar: bool = False) -> str:
    """Return the progress of a diagnosis in one line.

    Example:
        >>> line_of(DiagnosisProgress(Stage.ADJOINT, 9, residual=1e-4, goal=1e-8))
        'part 3 of 4, global adjoint: residual 0.0001, goal 1e-08 | 9 exchanges'
    """
    stages = list(Stage)
    number = stages.index(progress.stage) + 1
    filled = f"{bar(_share(progress))}  " if with_bar else ""
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
