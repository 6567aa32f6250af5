"""Differences between the settings of two experiments."""

from collections.abc import Mapping
from typing import Any

from fedbilevel.experiments.files.write import format_value, settings_of
from fedbilevel.experiments.schema import Experiment

MOST_NAMED = 5
"""The number of settings that a message lists."""


def differences(old: Experiment, new: Experiment) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new value of each setting that differs, by dotted name.

    The value of a setting that an experiment does not have is None. Tracking is
    ignored: it does not change the run.

    Example:
        >>> from fedbilevel import FedBiO
        >>> differences(Experiment(FedBiO(0.1)), Experiment(FedBiO(0.3)))
        {'algorithm.learning_rate': (0.1, 0.3)}
    """
    before, after = settings_of(old), settings_of(new)
    return {
        name: (before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


def format_differences(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the text of differences for a message.

    Example:
        >>> format_differences({"rounds": (12, 20), "norm_limit": (None, 8.0)})
        'rounds 12 → 20, norm_limit unset → 8.0'
    """
    changes = [
        f"{name} {_value(before)} → {_value(after)}"
        for name, (before, after) in different.items()
    ]
    more = len(changes) - MOST_NAMED
    return ", ".join(changes[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _value(value: Any) -> str:
    return "unset" if value is None else format_value(value)
