"""Checks of hyperparameters, at the moment a user writes them."""

from typing import Any

from fedbilevel.mathematics import schedules, tree


def check_settings(algorithm: Any, mixing_power: int) -> None:
    """Refuse impossible settings and make the learning rate a pytree.

    Only concrete numbers are judged: a traced rate, or a grid of rates, has no value.

    Args:
        algorithm: a dataclass under construction.
        mixing_power: the power of η that multiplies the mixing weights.

    Raises:
        ValueError: if a setting lies outside its range.
        TypeError: if a setting is of a kind that cannot serve.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> LocalBSGM(learning_rate=2.0, hypergradient=NeumannSeries(5, 0.5))
        Traceback (most recent call last):
        ...
        ValueError: LocalBSGM needs upper_mixing · learning_rate at most 1, but it is 2;
        lower either.
    """
    name = type(algorithm).__name__
    counts = ("local_steps", "batch_size", "opening_batch_size")
    for count in counts:
        number = getattr(algorithm, count, 1)
        if not isinstance(number, int) or number < 1:
            raise ValueError(
                f"{name} needs {count} at least 1 and whole, but it is {number!r}."
            )
    if isinstance(algorithm.hypergradient, type):
        raise TypeError(
            f"{name} was given the class {algorithm.hypergradient.__name__} for its "
            "hypergradient; give it an object of that class."
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
        if isinstance(value, str | tuple | type):
            raise TypeError(
                f"{name} needs a number for {rate}"
                f"{' or a schedule' if rate == 'learning_rate' else ''}, but it was "
                f"given {value!r}."
            )
        if tree.is_number(value) and value <= 0:
            raise ValueError(f"{name} needs {rate} above 0, but it is {value}.")
    eta = algorithm.learning_rate
    for mixing in ("upper_mixing", "lower_mixing"):
        weight = getattr(algorithm, mixing)
        if not (tree.is_number(eta) and tree.is_number(weight)):
            continue
        fresh = weight * eta**mixing_power
        if fresh > 1:
            power = f"^{mixing_power}" if mixing_power > 1 else ""
            raise ValueError(
                f"{name} needs {mixing} · learning_rate{power} at most 1, but it is "
                f"{fresh:.3g}; lower either."
            )
    object.__setattr__(algorithm, "learning_rate", schedules.as_tree(eta))
