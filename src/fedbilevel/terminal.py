"""Text from elsewhere in a terminal: control characters are shown, not obeyed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KEPT = "\n\t"
"""Control characters that do no harm."""
TURNING = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks of direction, by which a line can be made to read as another."""
BYTES = range(0xDC80, 0xDD00)
"""What Python makes of bytes in names of files that are no text."""
_SHOWN = {
    **{code: f"\\u{code:04x}" for code in (*range(0xD800, 0xE000), *map(ord, TURNING))},
    **{code: f"\\x{code - 0xDC00:02x}" for code in BYTES},
    **{
        code: f"\\x{code:02x}"
        for code in (*range(32), *range(127, 160))
        if chr(code) not in KEPT
    },
}


def printable(text: str) -> str:
    r"""Return a text with its control characters written out.

    A name of a file, an error of somebody's problem and a message of a site may have
    escapes, with which a terminal can be made to show what was never printed.

    Example:
        >>> print(printable("site-1: \x1b[2J\x1b[1;1Hall is well"))
        site-1: \x1b[2J\x1b[1;1Hall is well
    """
    return text.translate(_SHOWN)


@contextmanager
def printable_streams() -> Iterator[None]:
    r"""Have all that is printed inside pass `printable`, errors and warnings too.

    Example:
        >>> with printable_streams():
        ...     print("\x1b[2J")
        \x1b[2J
    """
    with _streams(_Printable(sys.stdout), _Printable(sys.stderr)):
        yield


@contextmanager
def original_streams() -> Iterator[None]:
    """Leave alone what is printed inside: help, in colours of its own.

    Example:
        >>> with printable_streams(), original_streams():
        ...     print("all of it")
        all of it
    """
    with _streams(unwrapped(sys.stdout), unwrapped(sys.stderr)):
        yield


@contextmanager
def _streams(out: Any, err: Any) -> Iterator[None]:
    streams: Any = sys
    before = streams.stdout, streams.stderr
    streams.stdout, streams.stderr = out, err
    try:
        yield
    finally:
        streams.stdout, streams.stderr = before


def unwrapped(stream: Any) -> Any:
    """Return the stream itself, for what is made of escapes on purpose.

    Example:
        >>> with printable_streams():
        ...     unwrapped(sys.stdout) is sys.stdout
        False
    """
    while isinstance(stream, _Printable):
        stream = stream.stream
    return stream


class _Printable:
    """A stream to which text is written by way of `printable`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
