"""A folder belongs to one run at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


class ClaimedError(ValueError):
    """A folder in which another process is running.

    Example:
        >>> str(ClaimedError("another process is running in runs/first"))
        'another process is running in runs/first'
    """


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other processes from running in it meanwhile.

    A new folder in which nothing is written, as by a run that is refused, is removed.

    Raises:
        ClaimedError: if another one does already.

    Example:
        >>> import tempfile
        >>> with claimed(Path(tempfile.mkdtemp()) / "first"):
        ...     pass
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
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
        with suppress(OSError):
            if made and [one.name for one in folder.iterdir()] == [LOCK]:
                # While it is held, so that no other process takes it in between.
                (folder / LOCK).unlink()
                for one in made:
                    one.rmdir()
        lock.release()
