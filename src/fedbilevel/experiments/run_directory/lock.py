"""A lock that lets one process at a time run in a directory."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


class LockedError(ValueError):
    """A run directory that is locked by another process."""


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Create a run directory if necessary, and lock it.

    A new directory is removed at the end if it is empty, as after an invalid run.

    Raises:
        LockedError: if another process has locked the directory.

    Example:
        >>> import tempfile
        >>> with run_lock(Path(tempfile.mkdtemp()) / "first"):
        ...     pass
    """
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LockedError(
            f"{directory} is locked: another process is running in it; wait until that "
            "process ends, or choose another --directory."
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            if created and [path.name for path in directory.iterdir()] == [LOCK]:
                # The file is removed before the release, so that no other process
                # acquires the lock of a directory that is about to be removed.
                (directory / LOCK).unlink()
                for path in created:
                    path.rmdir()
        lock.release()
