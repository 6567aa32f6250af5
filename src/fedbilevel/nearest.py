"""Suggestions for a misspelt name."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a cure: the nearest known name, or a choice of all if none is near.

    Example:
        >>> nearest("learning_rat", ["learning_rate", "local_steps"])
        'did you mean learning_rate?'
        >>> nearest("momentum", ["rate", "steps"])
        'choose one of rate, steps.'
    """
    known = sorted(known)
    near = nearest_name(name, known)
    return f"did you mean {near}?" if near else f"choose one of {', '.join(known)}."


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the nearest known name, whatever its case; None if none is near.

    Example:
        >>> nearest_name("learning_rat", ["learning_rate", "local_steps"])
        'learning_rate'
        >>> nearest_name("localbsgm", ["FedBiO", "LocalBSGM", "LocalBSGVRM"])
        'LocalBSGM'
    """
    by_lower_case = {other.lower(): other for other in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[near[0]] if near else None
