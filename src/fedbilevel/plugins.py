"""What other packages add: by entry points, or by the place of what a file names."""

import importlib
import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedbilevel.error_text import first_line

logger = logging.getLogger("fedbilevel")
LONGEST_REASON = 300
"""Characters of an exception's text in a message."""


def load_plugins(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield the entry points of a group, loaded.

    One that cannot be loaded is warned about and left out: what goes wrong in somebody
    else's package must not end every run.

    Example:
        >>> list(load_plugins("fedbilevel.no_such_group"))
        []
    """
    for point in entry_points(group=group):
        try:
            yield point, point.load()
        # A plug-in may raise anything at import, even SystemExit.
        except (Exception, SystemExit) as error:
            warn_excluded(point, _reason(error))


def warn_excluded(point: EntryPoint, reason: str) -> None:
    """Warn that a plug-in is left out.

    Example:
        >>> warn_excluded(EntryPoint("a", "b:c", "d"), "it is no dataclass.")
    """
    logger.warning(
        "the plug-in %s = %s is left out: %s", point.name, point.value, reason
    )


def warn_name_taken(point: EntryPoint, kind: str) -> None:
    """Warn that a plug-in is left out, as another thing has its name.

    Example:
        >>> warn_name_taken(EntryPoint("FedBiO", "b:c", "d"), "algorithm")
    """
    logger.warning(
        "the plug-in's %s %r has a name that is taken; it is left out", kind, point.name
    )


def import_object(name: str) -> Any:
    """Return what a place such as `package.module:Class` names.

    Raises:
        ValueError: if there is nothing.

    Example:
        >>> import_object("math:pi") > 3
        True
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"name is {name!r}, but there is nothing of the kind: {_reason(error)}; "
            "install its package, or correct the name."
        ) from error


def _reason(error: BaseException) -> str:
    """Return an exception's type and the first line of its text."""
    text = first_line(error, LONGEST_REASON)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
