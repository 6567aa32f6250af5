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
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
