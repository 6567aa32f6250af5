"""Safe printing of foreign text: control characters are escaped, not executed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

HARMLESS = "\n\t"
"""Control characters that are printed as they are."""
DIRECTION_MARKS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks of text direction, which can make a line look like another one."""
BYTES = range(0xDC80, 0xDD00)
"""Surrogates by which Python represents undecodable bytes of file names."""
_ESCAPES = {
    **{
        code: f"\\u{code:04x}"
        for code in (*range(0xD800, 0xE000), *map(ord, DIRECTION_MARKS))
    },
    **{code: f"\\x{code - 0xDC00:02x}" for code in BYTES},
    **{
        code: f"\\x{code:02x}"
        for code in (*range(32), *range(127, 160))
        if chr(code) not in HARMLESS
    },
}


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped.

    A file name, an error message of a custom problem or a message of a site may contain
    escape sequences, which can make a terminal display misleading text.

    Example:
        >>> print(printable("site-1: \x1b[2J\x1b[1;1Hall is well"))
        site-1: \x1b[2J\x1b[1;1Hall is well
    """
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    r"""Return a text with line breaks, tabs and other control characters escaped.

    A name with a line break can make a message look like two messages.

    Example:
        >>> print(one_line("first\nsecond"))
        first\nsecond
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


@contextmanager
def printable_streams() -> Iterator[None]:
    r"""Pass all text that is printed inside through `printable`, also on stderr.

    Example:
        >>> with printable_streams():
        ...     print("\x1b[2J")
        \x1b[2J
    """
    out, err = _Printable(sys.stdout), _Printable(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield


def unwrap(stream: Any) -> Any:
    """Return the stream below `printable_streams`, for intended escape sequences.

    Example:
        >>> with printable_streams():
        ...     unwrap(sys.stdout) is sys.stdout
        False
    """
    while isinstance(stream, _Printable):
        stream = stream.stream
    return stream


class _Printable:
    """A stream that passes text through `printable`."""

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
