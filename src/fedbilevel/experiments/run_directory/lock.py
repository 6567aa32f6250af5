"""A directory belongs to one run at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


class LockedError(ValueError):
    """A directory in which another process is running.

    Example:
        >>> str(LockedError("another process is running in runs/first"))
        'another process is running in runs/first'
    """


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Make a directory, and keep other processes from running in it meanwhile.

    A new directory in which nothing is written, as by a run that is refused, is removed.

    Raises:
        LockedError: if another one does already.

    Example:
        >>> import tempfile
        >>> with run_lock(Path(tempfile.mkdtemp()) / "first"):
        ...     pass
    """
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LockedError(
            f"another process is running in {directory}; wait for it, or choose another "
            "--directory."
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            if made and [one.name for one in directory.iterdir()] == [LOCK]:
                # While it is held, so that no other process takes it in between.
                (directory / LOCK).unlink()
                for one in made:
                    one.rmdir()
        lock.release()
