"""Plug-ins of other packages, found by entry points or by import paths."""

import importlib
import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedbilevel.error_text import first_line

logger = logging.getLogger("fedbilevel")
LONGEST_REASON = 300
"""Maximum number of characters of an exception's text in a message."""


def load_plugins(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield the entry points of a group with the objects that they load.

    An entry point that fails to load is excluded with a warning: an error in another
    package must not end every run.

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
    """Warn that a plug-in is ignored.

    Args:
        point: entry point of the plug-in.
        reason: full sentence.
    """
    logger.warning(
        "Plug-in %s = %s is ignored: %s Update or uninstall its package.",
        point.name,
        point.value,
        reason,
    )


def warn_name_taken(point: EntryPoint, plugin_type: str) -> None:
    """Warn that a plug-in is ignored because its name is taken.

    Args:
        point: entry point of the plug-in.
        plugin_type: type of the plug-in, such as "algorithm".
    """
    logger.warning(
        "Plug-in %s = %s is ignored: another %s has this name. Rename the entry point.",
        point.name,
        point.value,
        plugin_type,
    )


def import_object(name: str) -> Any:
    """Return the object at an import path such as `package.module:Class`.

    Raises:
        ValueError: if it cannot be imported.

    Example:
        >>> import_object("math:pi") > 3
        True
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"name = {name!r} cannot be imported: {_reason(error)} Install its "
            "package, or correct the name."
        ) from error


def _reason(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, as a sentence."""
    text = first_line(error, LONGEST_REASON)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{reason.rstrip('.')}."
