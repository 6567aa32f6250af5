"""Checks of hyperparameters, at the moment a user writes them."""

import math
from dataclasses import fields
from numbers import Integral
from typing import Any

from fedbilevel.mathematics import schedules, tree

COUNTS = ("_steps", "_size", "_rounds", "exchanges", "_per_step")
RATES = ("_rate", "_mixing", "_radius", "discount")


def check_settings(algorithm: Any, mixing_power: int = 0) -> None:
    """Refuse impossible settings and make the learning rate a pytree.

    What a setting must be follows from its name: a count, a rate, a mixing weight. Only
    concrete numbers are judged: a traced rate, or a grid of rates, has no value.

    Args:
        algorithm: a dataclass under construction.
        mixing_power: the power of η that multiplies the mixing weights, if there are
            any.

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
    check_counts(algorithm)
    check_rates(algorithm)
    check_switches(algorithm)
    if any(field.name == "hypergradient" for field in fields(algorithm)):
        _check_estimator(name, algorithm.hypergradient)
    if mixing_power:
        _check_mixing(algorithm, mixing_power)
    rate = schedules.as_tree(algorithm.learning_rate)
    object.__setattr__(algorithm, "learning_rate", rate)


def _check_estimator(algorithm: str, estimator: Any) -> None:
    if isinstance(estimator, type):
        raise TypeError(
            f"{algorithm} was given the class {estimator.__name__} for its "
            "hypergradient; give it an object of that class."
        )
    if not hasattr(estimator, "curvature_draws"):
        raise TypeError(
            f"{algorithm} was given {estimator!r} for its hypergradient; give it an "
            "estimator such as NeumannSeries(terms=10, scale=0.5)."
        )


def check_rates(settings: Any) -> None:
    """Refuse a rate, mixing weight or radius outside its range.

    Example:
        >>> from fedbilevel import AutoFedBiO
        >>> AutoFedBiO(rounds=10, lower_rate=-1.0)
        Traceback (most recent call last):
        ...
        ValueError: AutoFedBiO needs lower_rate above 0, but it is -1.0.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name.endswith(RATES) and not (value is None and field.default is None):
            _check_rate(type(settings).__name__, field.name, value)


def check_switches(settings: Any) -> None:
    """Refuse what is neither true nor false: any word would count as true.

    Example:
        >>> from dataclasses import make_dataclass
        >>> Settings = make_dataclass("Settings", [("private", object, False)])
        >>> check_switches(Settings("no"))
        Traceback (most recent call last):
        ...
        TypeError: Settings needs true or false for private, but it was given 'no'.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(field.default, bool) and not isinstance(value, bool):
            raise TypeError(
                f"{type(settings).__name__} needs true or false for {field.name}, but "
                f"it was given {value!r}."
            )


def check_counts(settings: Any) -> None:
    """Refuse a count that is not whole or below 1.

    Example:
        >>> from fedbilevel import WarmStart
        >>> WarmStart(learning_rate=0.1, exchanges=0)
        Traceback (most recent call last):
        ...
        ValueError: WarmStart needs exchanges at least 1 and whole, but it is 0.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        left_out = value is None and field.default is None
        if not field.name.endswith(COUNTS) or left_out:
            continue
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or value < 1:
            raise ValueError(
                f"{type(settings).__name__} needs {field.name} at least 1 and whole, "
                f"but it is {value!r}."
            )


def _check_rate(algorithm: str, name: str, value: Any) -> None:
    if value is None or isinstance(value, str | list | tuple | dict | bool | type):
        raise TypeError(
            f"{algorithm} needs a number for {name}"
            f"{' or a schedule' if name == 'learning_rate' else ''}, but it was "
            f"given {value!r}."
        )
    if not tree.is_number(value):
        return
    if not math.isfinite(value):
        raise ValueError(f"{algorithm} needs {name} to be finite, but it is {value}.")
    if name == "upper_rate" and value < 0:
        raise ValueError(
            f"{algorithm} needs upper_rate above 0, or 0 to train y with x fixed, but "
            f"it is {value}."
        )
    if name != "upper_rate" and value <= 0:
        raise ValueError(f"{algorithm} needs {name} above 0, but it is {value}.")
    if name == "discount" and value > 1:
        raise ValueError(f"{algorithm} needs discount at most 1, but it is {value}.")


def _check_mixing(algorithm: Any, power: int) -> None:
    eta = algorithm.learning_rate
    if isinstance(eta, schedules.CubeRootDecay) and tree.is_number(eta.scale):
        eta = eta(0)  # its largest
    for field in fields(algorithm):
        weight = getattr(algorithm, field.name)
        numbers = tree.is_number(eta) and tree.is_number(weight)
        if not (field.name.endswith("_mixing") and numbers):
            continue
        fresh = weight * eta**power
        if fresh > 1:
            raised = f"^{power}" if power > 1 else ""
            raise ValueError(
                f"{type(algorithm).__name__} needs {field.name} · learning_rate{raised}"
                f" at most 1, but it is {fresh:.3g}; lower either."
            )
