"""Plug-ins of other packages, found by entry points or by import paths."""

import importlib
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from fedbilevel.error_text import first_line

logger = logging.getLogger("fedbilevel")
LONGEST_REASON = 300
"""Maximum number of characters of an exception's text in a message."""


def with_plugins(
    built_in: Mapping[str, Any],
    group: str,
    plugin_type: str,
    invalid_reason: Callable[[Any], str | None],
) -> dict[str, Any]:
    """Return built-in objects and those that the entry points of a group load, by name.

    A plug-in that fails to load, is invalid or has the name of another one is excluded
    with a warning: an error in another package must not end every run.

    Args:
        built_in: the library's own objects.
        group: group of entry points.
        plugin_type: type of the objects, such as "algorithm".
        invalid_reason: function that returns the reason why an object is invalid as a
            full sentence, or None if it is valid.

    Example:
        >>> with_plugins({"a": 1}, "fedbilevel.no_such_group", "letter", lambda _: None)
        {'a': 1}
    """
    known = dict(built_in)
    for point in entry_points(group=group):
        cure = "Update or uninstall its package."
        try:
            loaded = point.load()
            reason = invalid_reason(loaded)
        # A plug-in may raise anything at import, even SystemExit.
        except (Exception, SystemExit) as error:
            reason = _reason(error)
        if reason is None and point.name in known:
            reason = f"another {plugin_type} has this name."
            cure = "Rename the entry point."
        if reason is None:
            known[point.name] = loaded
        else:
            warning = "Plug-in %s = %s is ignored: %s %s"
            logger.warning(warning, point.name, point.value, reason, cure)
    return known


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
