"""Checks of hyperparameters, at the moment a user writes them."""

from typing import Any

from fedbilevel.mathematics import schedules


def check_settings(algorithm: Any, mixing_power: int) -> None:
    """Refuse impossible settings and make the learning rate a pytree.

    Traced values, as they occur when a compiled function rebuilds the dataclass, are
    left alone.

    Args:
        algorithm: a dataclass under construction.
        mixing_power: the power of η that multiplies the mixing weights.

    Raises:
        ValueError: if a setting lies outside its range.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> LocalBSGM(learning_rate=2.0, hypergradient=NeumannSeries(5, 0.5))
        Traceback (most recent call last):
        ...
        ValueError: LocalBSGM needs upper_mixing · learning_rate^1 at most 1, but it is
        2; lower either.
    """
    name = type(algorithm).__name__
    counts = ("local_steps", "batch_size", "opening_batch_size")
    for count in counts:
        if getattr(algorithm, count, 1) < 1:
            raise ValueError(
                f"{name} needs {count} at least 1, but it is "
                f"{getattr(algorithm, count)}."
            )
    rates = (
        "learning_rate",
        "upper_rate",
        "lower_rate",
        "upper_mixing",
        "lower_mixing",
    )
    for rate in rates:
        value = getattr(algorithm, rate)
        if _is_number(value) and value <= 0:
            raise ValueError(f"{name} needs {rate} above 0, but it is {value}.")
    eta = algorithm.learning_rate
    for mixing in ("upper_mixing", "lower_mixing"):
        weight = getattr(algorithm, mixing)
        if _is_number(eta) and _is_number(weight) and weight * eta**mixing_power > 1:
            raise ValueError(
                f"{name} needs {mixing} · learning_rate^{mixing_power} at most 1, but "
                f"it is {weight * eta**mixing_power:.3g}; lower either."
            )
    object.__setattr__(algorithm, "learning_rate", schedules.as_tree(eta))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
