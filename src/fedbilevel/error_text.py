"""The text and the place of an exception, for a message of one sentence."""

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def first_line(error: BaseException, longest: int | None = None) -> str:
    r"""Return the first line of an exception's text; empty if it has none.

    Args:
        error: exception of any package; even its `__str__` may raise.
        longest: maximum number of characters; no limit by default.

    Example:
        >>> first_line(ValueError("no such file\nsee the log"))
        'no such file'
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        return ""
    return lines[0][:longest] if lines else ""


def place_in(error: BaseException, function: Callable[..., Any]) -> str:
    """Return " (FILE, line N)": the last frame of an error in the file of a function.

    Empty if the function is not defined in a file of Python, or no frame is in it.

    Args:
        error: exception that the function raised.
        function: function of the user, such as a loss.

    Example:
        >>> place_in(ValueError("not raised"), first_line)
        ''
    """
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code else None
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    # The name alone, because a site sends messages to the server.
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""
