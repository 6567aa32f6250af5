"""Checks of an algorithm's settings, at the moment a user writes them."""

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
    """Refuse impossible settings and make the learning rate a pytree.

    What a setting may be is said by its type, as `fedbilevel.mathematics.settings` has
    them. Only concrete numbers are judged.

    Args:
        algorithm: a dataclass under construction.

    Raises:
        ValueError: if a setting lies outside its limits.
        TypeError: if a setting is of a kind that cannot serve.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> LocalBSGM(learning_rate=2.0, hypergradient=NeumannSeries(5, 0.5))
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: LocalBSGM needs upper_mixing ·
        learning_rate at most 1, but it is 2; lower either.
    """
    check_ranges(algorithm)
    if hasattr(algorithm, "hypergradient"):
        _check_estimator(type(algorithm).__name__, algorithm.hypergradient)
    _check_fresh_weights(algorithm)
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


def _check_fresh_weights(algorithm: Any) -> None:
    eta = algorithm.learning_rate
    if isinstance(eta, schedules.CubeRootDecay) and is_number(eta.scale):
        eta = eta(0)  # its largest
    for name, one in declarations(type(algorithm)).items():
        mark = one.find(FreshWeight)
        weight = getattr(algorithm, name)
        if mark is None or not (is_number(eta) and is_number(weight)):
            continue
        fresh = weight * eta**mark.power
        if fresh > 1:
            raised = f"^{mark.power}" if mark.power > 1 else ""
            product = f"{name} · learning_rate{raised}"
            raise SettingError(
                name,
                f"{product} is {fresh:.3g}, and may be at most 1; lower either.",
                f"{type(algorithm).__name__} needs {product} at most 1, but it is "
                f"{fresh:.3g}; lower either.",
            )
