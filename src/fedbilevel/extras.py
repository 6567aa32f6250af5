"""Packages of the extras, which are imported where they are needed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(purpose: str, package: str, install: str) -> Iterator[None]:
    """Name the command that installs a package, if the block cannot import it.

    Args:
        purpose: subject of the message, in the plural.
        package: name of the package.
        install: argument of `pip install`.

    Raises:
        ImportError: if the block raises it.

    Example:
        >>> with needs("Pictures", "matplotlib", "matplotlib"):
        ...     import no_such_module
        Traceback (most recent call last):
        ...
        ImportError: Pictures need matplotlib, which is not installed. Run: pip install
        matplotlib
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{purpose} need {package}, which is not installed. Run: pip install "
            f"{install}"
        ) from error
