"""Atomic writes: readers see the whole file, old or new, also after a crash."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_replace(file: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `file` when the block ends.

    A crash in between, of the program or of the machine, leaves the old file unchanged.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with atomic_replace(file) as unfinished:
        ...     _ = unfinished.write_text("all of it")
        >>> file.read_text()
        'all of it'
    """
    unfinished = file.with_name(f"unfinished-{file.name}")
    # It may be left over from a crash, or be a link that would overwrite another file.
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
    except OSError as error:
        # An error of write(), unlike one of open(), has no file name.
        if error.filename is None and error.errno is not None:
            error.filename = str(unfinished)
        raise
    synchronise(unfinished)
    unfinished.rename(file)
    synchronise(file.parent)


def atomic_write(file: Path, content: str | bytes) -> None:
    """Write bytes, or a text in UTF-8; a crash leaves the old file unchanged.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> atomic_write(file, "all of it")
        >>> file.read_text()
        'all of it'
    """
    with atomic_replace(file) as unfinished:
        unfinished.write_bytes(
            content.encode() if isinstance(content, str) else content
        )


def append(file: Path, line: bytes) -> None:
    """Append a line to a file and sync it to disk: the whole line, or nothing.

    Raises:
        OSError: if the line could not be written.

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
            # Otherwise the next line would be appended to half of this one.
            lines.truncate(before)
            raise
    if is_new:
        # The directory entry must survive a power cut, too.
        synchronise(file.parent)
        synchronise(file.parent.parent)


def read_appended(file: Path, start: int) -> tuple[list[bytes], int]:
    """Return the lines of a file from a position on, and the position of its end.

    An unfinished last line is cut off: `append` did not return, so nothing followed
    from it. Call this while no other process appends.

    Args:
        file: file that `append` writes; it may be missing.
        start: end of the lines that are known. If the file is shorter, no lines are
            returned, and the end is below `start`.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "lines.txt"
        >>> append(file, b"one")
        >>> append(file, b"two")
        >>> read_appended(file, 4)
        ([b'two'], 8)
        >>> read_appended(file.with_name("other.txt"), 4)
        ([], 0)
    """
    size = file.stat().st_size if file.exists() else 0
    if size <= start:
        return [], size
    with file.open("rb") as opened:
        opened.seek(start)
        added = opened.read()
    whole = added[: added.rfind(b"\n") + 1]
    if whole != added:
        os.truncate(file, start + len(whole))
    return whole.splitlines(), start + len(whole)


def synchronise(path: Path) -> None:
    """Sync a file's content, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
