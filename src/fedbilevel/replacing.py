"""Files that are whole whenever somebody reads them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give another file to write to, which takes the place of this one once written.

    A crash in between, of the program or of the machine, leaves the old file whole.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with replacing(file) as unfinished:
        ...     _ = unfinished.write_text("all of it")
        >>> file.read_text()
        'all of it'
    """
    unfinished = file.with_name(f"unfinished-{file.name}")
    yield unfinished
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.rename(file)
