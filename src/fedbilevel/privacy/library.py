"""The optional library dp-accounting, imported on first use."""

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

OLDEST = (0, 6)
"""The oldest version of dp-accounting with everything that this package calls."""
CURE = "Run: pip install 'fedbilevel[privacy]'"


@cache
def dp_accounting() -> Any:
    """Return the module dp_accounting.

    Raises:
        ImportError: if it is not installed or too old. An installer picks version 0.0.2
            if another package requires attrs 24 or newer.

    Example:
        >>> dp_accounting().__name__
        'dp_accounting'
    """
    check_version(installed_version())
    return import_module("dp_accounting")


def installed_version() -> str | None:
    """Return the version of dp-accounting, or None if it is not installed.

    Example:
        >>> installed_version() is not None
        True
    """
    try:
        return version("dp-accounting")
    except PackageNotFoundError:
        return None


def check_version(text: str | None) -> None:
    """Raise an error if a version of dp-accounting is None or too old.

    Raises:
        ImportError: with the command that installs a new version.

    Example:
        >>> check_version("0.6.0")
        >>> check_version("0.0.2")
        Traceback (most recent call last):
        ...
        ImportError: The privacy accountant needs dp-accounting 0.6 or newer, but 0.0.2
        is installed. Run: pip install 'fedbilevel[privacy]'
    """
    needed = "The privacy accountant needs dp-accounting 0.6 or newer, "
    if text is None:
        raise ImportError(f"{needed}which is not installed. {CURE}")
    if tuple(int(part) for part in text.split(".")[:2]) < OLDEST:
        raise ImportError(f"{needed}but {text} is installed. {CURE}")
