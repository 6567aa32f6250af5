"""Files that are whole whenever somebody reads them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give another file to write to, which takes the place of this one once written.

    A crash in between leaves the old file whole.

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
    unfinished.rename(file)
