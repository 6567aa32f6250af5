"""Live progress: in a terminal a line that renews itself, elsewhere a line at times."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedbilevel.experiments.running import Step

PLAIN_SECONDS = 10.0
"""Between two lines where there is no terminal."""


@contextmanager
def progress(rounds: int, quiet: bool = False) -> Iterator[Callable[[Step], None]]:
    """Yield a function that shows a finished round.

    Example:
        >>> with progress(3, quiet=True) as show:
        ...     pass
    """
    if quiet:
        yield lambda step: None
    elif sys.stderr.isatty():
        yield from _live(rounds)
    else:
        yield _plain(rounds)


def _live(rounds: int) -> Iterator[Callable[[Step], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        TextColumn("{task.fields[spent]}"),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        bar = shown.add_task("run", total=rounds, spent="", figures="")

        def show(step: Step) -> None:
            shown.update(bar, completed=step.done.number + 1, spent=_spent(step))
            if step.record is not None:
                shown.update(bar, figures=_figures(step))

        yield show


def _plain(rounds: int) -> Callable[[Step], None]:
    last = -PLAIN_SECONDS

    def show(step: Step) -> None:
        nonlocal last
        now = time.monotonic()
        if step.record is None or (
            now - last < PLAIN_SECONDS and step.done.number + 1 < rounds
        ):
            return
        last = now
        print(
            f"round {step.done.number + 1}/{rounds}  {_spent(step)}  {_figures(step)}",
            file=sys.stderr,
            flush=True,
        )

    return show


def _spent(step: Step) -> str:
    costs = step.done.costs
    sent = costs.bytes_up + costs.bytes_down
    return f"{_short(costs.samples)} samples  {_short(sent)}B"


def _figures(step: Step) -> str:
    assert step.record is not None
    return "  ".join(f"{name} {one:.4g}" for name, one in step.record.figures.items())


def _short(number: float) -> str:
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"
