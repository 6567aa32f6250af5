"""Reading of regular files; directories, pipes and devices are refused."""

import os
import stat
from pathlib import Path

FILE_TYPES = {
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
"""Types of files that are refused, by the test for the type."""


class UnreadableError(ValueError):
    """Raised if a path is not a regular file, or cannot be read."""


def read_regular(file: Path, cure: str, largest: int | None = None) -> bytes:
    """Return the content of a file; a pipe is refused without waiting for its writer.

    Args:
        file: path; links are followed.
        cure: last part of an error message, an imperative.
        largest: maximum size in bytes; None for no limit.

    Raises:
        FileNotFoundError: if the path does not exist.
        UnreadableError: if it is not a regular file, is too large, or cannot be read.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> try:
        ...     read_regular(directory, "remove it.")
        ... except ValueError as error:
        ...     print(str(error).replace(str(directory), "…"))
        … is a directory, not a file; remove it.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        if file.is_symlink():
            raise UnreadableError(
                f"{file} is a link to a missing file; {cure}"
            ) from None
        raise
    except OSError as error:
        raise UnreadableError(
            f"{file} cannot be read: {error.strerror}; {cure}"
        ) from None
    try:
        status = os.fstat(descriptor)
        for has_type, name in FILE_TYPES.items():
            if has_type(status.st_mode):
                raise UnreadableError(f"{file} is {name}, not a file; {cure}")
        if largest is not None and status.st_size > largest:
            raise UnreadableError(
                f"{file} has {status.st_size} bytes, more than {largest}; {cure}"
            )
        with open(descriptor, "rb", closefd=False) as opened:
            return opened.read()
    except OSError as error:
        raise UnreadableError(
            f"{file} cannot be read: {error.strerror}; {cure}"
        ) from None
    finally:
        os.close(descriptor)
