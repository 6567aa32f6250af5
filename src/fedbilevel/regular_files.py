"""Regular files, read whole; whatever else stands in their place is refused."""

import os
import stat
from pathlib import Path

KINDS = {
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
"""What may have the name of a file, by the test for it."""


class UnreadableError(ValueError):
    """What has the name of a file and is none that can be read.

    Example:
        >>> str(UnreadableError("notes is a directory and no file; remove it."))
        'notes is a directory and no file; remove it.'
    """


def read_regular(file: Path, cure: str) -> bytes:
    """Return the content of a file, without waiting for a pipe's other end.

    Args:
        file: to be read; links are followed.
        cure: what to do if it cannot be, for the message.

    Raises:
        FileNotFoundError: if nothing has that name.
        UnreadableError: if it is no regular file, or cannot be read.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> try:
        ...     read_regular(directory, "remove it.")
        ... except ValueError as error:
        ...     print(str(error).replace(str(directory), "…"))
        … is a directory and no file; remove it.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        if file.is_symlink():
            raise UnreadableError(
                f"{file} is a link that leads nowhere; {cure}"
            ) from None
        raise
    except OSError as error:
        raise UnreadableError(
            f"{file} cannot be read: {error.strerror}; {cure}"
        ) from None
    try:
        mode = os.fstat(descriptor).st_mode
        for is_kind, words in KINDS.items():
            if is_kind(mode):
                raise UnreadableError(f"{file} is {words} and no file; {cure}")
        with open(descriptor, "rb", closefd=False) as opened:
            return opened.read()
    except OSError as error:
        raise UnreadableError(
            f"{file} cannot be read: {error.strerror}; {cure}"
        ) from None
    finally:
        os.close(descriptor)
