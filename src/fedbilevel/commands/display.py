"""Progress of a command: live lines in a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fedbilevel.terminal import printable, printable_streams, unwrap

FRAMES_PER_SECOND = 2
PLAIN_SECONDS = 10.0
"""Seconds between two lines without a terminal."""
STARTING = "loading data and compiling …"
"""Text of a live line before the first progress."""
BAR = 24
"""Width of a bar in characters."""


def bar(share: float) -> str:
    """Return a bar of which a share is filled.

    Example:
        >>> bar(0.125)
        '━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌'
    """
    filled = round(BAR * share)
    return f"{'━' * filled}{'╌' * (BAR - filled)}"


@contextmanager
def display(
    rows: Callable[[], Iterable[tuple[str, str]]],
    line: Callable[[], str],
    quiet: bool = False,
    *,
    headline: str | None = None,
    transient: bool = False,
) -> Iterator[Callable[[bool], None]]:
    """Show progress on standard error, and yield a function to call at each change.

    Its argument is whether a line is due where there is no terminal; otherwise a line
    is printed every `PLAIN_SECONDS`.

    Args:
        rows: function that returns the name and the text of each live line.
        line: function that returns the progress in one line.
        quiet: whether to show nothing.
        headline: first line.
        transient: whether to erase the live lines at the end.

    Example:
        >>> with display(lambda: [], lambda: "3 of 10", quiet=True) as show:
        ...     show(True)
    """
    if headline is not None and not quiet:
        print(headline, file=sys.stderr)
    if not quiet and sys.stderr.isatty():
        # Changes may take milliseconds: only frames that are shown are formatted.
        with live(rows, transient):
            yield lambda due: None
        return
    printed_at = time.monotonic()

    def show(due: bool) -> None:
        nonlocal printed_at
        time_now = time.monotonic()
        if not quiet and (due or time_now - printed_at >= PLAIN_SECONDS):
            printed_at = time_now
            print(line(), file=sys.stderr, flush=True)

    yield show


@contextmanager
def live(
    rows: Callable[[], Iterable[tuple[str, str]]], transient: bool = False
) -> Iterator[None]:
    """Show live lines below all other printed text.

    Args:
        rows: function that returns the name and the current text of each line.
        transient: whether to erase the lines at the end.

    Example:
        >>> with live(lambda: [("round", "3 of 10")]):
        ...     pass
    """
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def frame() -> Table:
        table = Table.grid(padding=(0, 2))
        for name, text in rows():
            table.add_row(Text(printable(name), style="bold"), Text(printable(text)))
        return table

    with (
        Live(
            get_renderable=frame,
            # Rich writes escape sequences.
            console=Console(file=unwrap(sys.stderr)),
            refresh_per_second=FRAMES_PER_SECOND,
            transient=transient,
        ),
        # Rich has replaced the printable streams by its own.
        printable_streams(),
    ):
        yield
