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
    # What an earlier crash left; or a link, which would have another file overwritten.
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
    except OSError as error:
        # Writing, unlike opening, does not say which file was meant.
        if error.filename is None and error.errno is not None:
            error.filename = str(unfinished)
        raise
    synchronise(unfinished)
    unfinished.rename(file)
    synchronise(file.parent)


def synchronise(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a folder, for good.

    Example:
        >>> import tempfile
        >>> synchronise(Path(tempfile.mkdtemp()))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
