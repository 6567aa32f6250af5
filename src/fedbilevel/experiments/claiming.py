"""A folder belongs to one run at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


class ClaimedError(ValueError):
    """A folder in which another process is running.

    Example:
        >>> str(ClaimedError("another process is running in runs/first"))
        'another process is running in runs/first'
    """


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other processes from running in it meanwhile.

    Raises:
        ClaimedError: if another one does already.

    Example:
        >>> import tempfile
        >>> with claimed(Path(tempfile.mkdtemp()) / "first"):
        ...     pass
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ClaimedError(
            f"another process is running in {folder}; wait for it, or choose another "
            "--folder."
        ) from None
    try:
        yield
    finally:
        lock.release()
