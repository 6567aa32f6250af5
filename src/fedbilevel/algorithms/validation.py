"""Validation of an algorithm's settings on construction."""

from typing import Any

from fedbilevel.mathematics import schedules
from fedbilevel.mathematics.hypergradients import Hypergradient
from fedbilevel.mathematics.settings import (
    FreshWeight,
    Role,
    SettingError,
    check_ranges,
    declared_values,
    is_number,
)


def check_settings(algorithm: Any) -> None:
    """Raise an error for invalid settings, and make learning rates pytrees.

    The types of `fedbilevel.mathematics.settings` define the valid range of a setting.
    Only concrete numbers are checked.

    Args:
        algorithm: dataclass under construction.

    Raises:
        ValueError: if a setting is outside its range.
        TypeError: if a setting has the wrong type.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> LocalBSGM(learning_rate=2.0, hypergradient=NeumannSeries(5, 0.5))
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: LocalBSGM: upper_mixing ·
        learning_rate is 2, expected at most 1; lower upper_mixing or learning_rate.
    """
    check_ranges(algorithm)
    owner = type(algorithm).__name__
    for name, value, declaration in declared_values(algorithm):
        if declaration.kind is Hypergradient:
            _check_estimator(f"{owner}: {name}", value)
        if Role.LEARNING_RATE in declaration.marks:
            _check_fresh_weights(algorithm, name, value)
            object.__setattr__(algorithm, name, schedules.as_tree(value))


def _check_estimator(setting: str, estimator: Any) -> None:
    if isinstance(estimator, type):
        raise TypeError(
            f"{setting} is the class {estimator.__name__}, expected an object. Pass "
            f"{estimator.__name__}(...)."
        )
    if not hasattr(estimator, "curvature_draws"):
        raise TypeError(
            f"{setting} is {estimator!r}, expected an estimator. Pass, for example, "
            "NeumannSeries(terms=10, scale=0.5)."
        )


def _check_fresh_weights(algorithm: Any, rate: str, eta: Any) -> None:
    if isinstance(eta, schedules.CubeRootDecay) and is_number(eta.scale):
        eta = eta(0)  # the largest rate
    for name, weight, declaration in declared_values(algorithm):
        mark = declaration.find(FreshWeight)
        if mark is None or not (is_number(eta) and is_number(weight)):
            continue
        fresh = weight * eta**mark.power
        if fresh > 1:
            power = f"^{mark.power}" if mark.power > 1 else ""
            cure = (
                f"{name} · {rate}{power} is {fresh:.3g}, expected at most 1; "
                f"lower {name} or {rate}."
            )
            raise SettingError(name, cure, f"{type(algorithm).__name__}: {cure}")
