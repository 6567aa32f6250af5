"""Live lines in a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fedbilevel.terminal import printable, printable_streams, unwrap

FRAMES_PER_SECOND = 2


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
