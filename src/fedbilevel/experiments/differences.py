"""Settings in which two experiments differ."""

from collections.abc import Mapping
from typing import Any

from fedbilevel.experiments.files.write import in_line, settings_of
from fedbilevel.experiments.schema import Experiment

MOST_NAMED = 5
"""Settings that one message names."""


def differences(then: Experiment, now: Experiment) -> dict[str, tuple[Any, Any]]:
    """Return both values of each setting that differs, by dotted name.

    A setting that one of them does not have is None there. Tracking is left aside: it
    does not change the run.

    Example:
        >>> from fedbilevel import FedBiO
        >>> differences(Experiment(FedBiO(0.1)), Experiment(FedBiO(0.3)))
        {'algorithm.learning_rate': (0.1, 0.3)}
    """
    before, after = settings_of(then), settings_of(now)
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


def format_differences(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences as a message names them.

    Example:
        >>> format_differences({"rounds": (12, 20), "norm_limit": (None, 8.0)})
        'rounds 12 → 20, norm_limit unset → 8.0'
    """
    named = [
        f"{name} {_value(before)} → {_value(after)}"
        for name, (before, after) in different.items()
    ]
    more = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _value(value: Any) -> str:
    return "unset" if value is None else in_line(value)
