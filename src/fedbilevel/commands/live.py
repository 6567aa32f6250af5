"""Lines that renew themselves in a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fedbilevel.terminal import printable, printable_streams, unwrapped

FRAMES_PER_SECOND = 2


@contextmanager
def live(
    rows: Callable[[], Iterable[tuple[str, str]]], transient: bool = False
) -> Iterator[None]:
    """Show lines below all that is printed meanwhile.

    Args:
        rows: returns names, and what there is to be told of each now.
        transient: whether nothing of it stays at the end.

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
        for name, words in rows():
            table.add_row(Text(printable(name), style="bold"), Text(printable(words)))
        return table

    with (
        Live(
            get_renderable=frame,
            # Escapes are its own to write.
            console=Console(file=unwrapped(sys.stderr)),
            refresh_per_second=FRAMES_PER_SECOND,
            transient=transient,
        ),
        # It has put streams of its own in the place of those that were printable.
        printable_streams(),
    ):
        yield
