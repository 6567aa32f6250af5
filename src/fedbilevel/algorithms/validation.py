"""Validation of an algorithm's settings on construction."""

from typing import Any

from fedbilevel.mathematics import schedules
from fedbilevel.mathematics.settings import (
    FreshWeight,
    SettingError,
    check_ranges,
    declarations,
    is_number,
)


def check_settings(algorithm: Any) -> None:
    """Raise an error for invalid settings, and make the learning rate a pytree.

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
    settings = vars(algorithm)
    if "hypergradient" in settings:
        _check_estimator(type(algorithm).__name__, settings["hypergradient"])
    # A wrapper, or an algorithm that chooses its rates, has none.
    if "learning_rate" in settings:
        _check_fresh_weights(algorithm)
        rate = schedules.as_tree(settings["learning_rate"])
        object.__setattr__(algorithm, "learning_rate", rate)


def _check_estimator(algorithm: str, estimator: Any) -> None:
    if isinstance(estimator, type):
        raise TypeError(
            f"{algorithm}: hypergradient is the class {estimator.__name__}, expected "
            f"an object. Pass {estimator.__name__}(...)."
        )
    if not hasattr(estimator, "curvature_draws"):
        raise TypeError(
            f"{algorithm}: hypergradient is {estimator!r}, expected an estimator. "
            "Pass, for example, NeumannSeries(terms=10, scale=0.5)."
        )


def _check_fresh_weights(algorithm: Any) -> None:
    eta = algorithm.learning_rate
    if isinstance(eta, schedules.CubeRootDecay) and is_number(eta.scale):
        eta = eta(0)  # the largest rate
    for name, declaration in declarations(type(algorithm)).items():
        mark = declaration.find(FreshWeight)
        weight = getattr(algorithm, name)
        if mark is None or not (is_number(eta) and is_number(weight)):
            continue
        fresh = weight * eta**mark.power
        if fresh > 1:
            power = f"^{mark.power}" if mark.power > 1 else ""
            cure = (
                f"{name} · learning_rate{power} is {fresh:.3g}, expected at most 1; "
                f"lower {name} or learning_rate."
            )
            raise SettingError(name, cure, f"{type(algorithm).__name__}: {cure}")
