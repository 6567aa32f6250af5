"""The cure for a misspelt name: the nearest one that there is."""

import difflib
from collections.abc import Iterable


def nearest(given: str, known: Iterable[str]) -> str:
    """Return a question about the nearest name, or all names if none is near.

    Example:
        >>> nearest("learning_rat", ["learning_rate", "local_steps"])
        'did you mean learning_rate?'
        >>> nearest("momentum", ["rate", "steps"])
        'there are rate, steps.'
    """
    known = sorted(known)
    near = nearest_name(given, known)
    return f"did you mean {near}?" if near else f"there are {', '.join(known)}."


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, if one is near.

    Example:
        >>> nearest_name("learning_rat", ["learning_rate", "local_steps"])
        'learning_rate'
    """
    return next(iter(difflib.get_close_matches(given, sorted(known), n=1)), None)
