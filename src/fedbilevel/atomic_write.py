"""Files that are whole whenever somebody reads them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_replace(file: Path) -> Iterator[Path]:
    """Give another file to write to, which takes the place of this one once written.

    A crash in between, of the program or of the machine, leaves the old file whole.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with atomic_replace(file) as unfinished:
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


def append(file: Path, line: bytes) -> None:
    """Write a line at the end of a file, for good: all of it, or nothing.

    Raises:
        OSError: it could not be written.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes" / "lines.txt"
        >>> append(file, b"one")
        >>> append(file, b"two")
        >>> file.read_bytes().split()
        [b'one', b'two']
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    whole = line + b"\n"
    with file.open("ab", buffering=0) as lines:
        before = lines.tell()
        try:
            if lines.write(whole) < len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
            os.fsync(lines.fileno())
        except OSError:
            # Or else the next line would stand behind half of this one.
            lines.truncate(before)
            raise
    if is_new:
        # Its name, too, must outlive a power cut.
        synchronise(file.parent)
        synchronise(file.parent.parent)


def synchronise(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a directory, for good.

    Example:
        >>> import tempfile
        >>> synchronise(Path(tempfile.mkdtemp()))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
