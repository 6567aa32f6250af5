"""The constants that the paper derives from its assumptions.

`docs/paper-notes.md` explains how inconsistencies of the paper are resolved.
"""

from math import sqrt

from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.theory.assumptions import Assumptions


def objective_smoothness(assumptions: Assumptions) -> float:
    """Return L_Φ, the Lipschitz constant of ∇Φ.

    Example:
        >>> objective_smoothness(Assumptions(1.0, 1.0, 1.0))
        4.0
    """
    mu, l0, l1, l21, l22 = assumptions.symbols
    return (
        l1
        + (2 * l1**2 + l21 * l0**2) / mu
        + (l22 * l1 * l0 + l1**3 + l21 * l0 * l1) / mu**2
        + l22 * l1**2 * l0 / mu**3
    )


def estimator_lipschitz(assumptions: Assumptions, series: NeumannSeries) -> float:
    """Return L̂, the Lipschitz constant of the sampled hypergradient.

    Example:
        >>> round(
        ...     estimator_lipschitz(
        ...         Assumptions(1.0, 1.0, 1.0), NeumannSeries(terms=1, scale=0.5)
        ...     ),
        ...     6,
        ... )
        3.162278
    """
    _, l0, l1, l21, l22 = assumptions.symbols
    q, theta = series.terms, float(series.scale)
    return sqrt(
        2 * l1**2
        + 4 * theta**2 * l0**2 * l21**2 * (q + 1) ** 2
        + 8 * theta**2 * l1**4 * (q + 1) ** 2
        + 2 * theta**4 * l0**2 * l1**2 * l22**2 * q**2 * (q + 1) ** 2
    )


def lower_error_factor(assumptions: Assumptions) -> float:
    """Return L̃: an error ‖y − y*‖ causes a hypergradient error of at most L̃ ‖y − y*‖.

    Example:
        >>> lower_error_factor(Assumptions(1.0, 1.0, 1.0))
        2.0
    """
    mu, l0, l1, l21, l22 = assumptions.symbols
    return l1 + l1**2 / mu + l0 * l21 / mu + l0 * l1 * l22 / mu**2


def estimator_variance(assumptions: Assumptions, series: NeumannSeries) -> float:
    """Return G², the bound of the sampled hypergradient's variance.

    The paper prints this expression as G and then uses G squared; the expression has
    the dimension of a squared gradient, so it is read as G². By its dimension, σ in the
    last term is a deviation of ∇²g, whereas `Assumptions.deviation` is one of ∇g. G²
    bounds the variance for any σ: under Assumptions 1 and 2 the variance is at most
    2L_0² + 2θ²L_0²L_1²(Q + 1)².

    Example:
        >>> estimator_variance(
        ...     Assumptions(1.0, 1.0, 1.0), NeumannSeries(terms=1, scale=0.5)
        ... )
        14.0
    """
    _, l0, l1, _, _ = assumptions.symbols
    q, theta = series.terms, float(series.scale)
    return (
        2 * l0**2
        + 12 * theta**2 * l0**2 * l1**2 * (q + 1) ** 2
        + 4
        * theta**4
        * l0**2
        * l1**2
        * (q + 2)
        * (q + 1) ** 2
        * assumptions.deviation**2
    )


def series_bias(assumptions: Assumptions, series: NeumannSeries) -> float:
    """Return Δ_Q = (1 − θμ)^(Q+1) L_0 L_1 / μ, the bound of the series' bias.

    Example:
        >>> series_bias(Assumptions(1.0, 1.0, 1.0), NeumannSeries(terms=2, scale=0.5))
        0.125
    """
    mu, l0, l1, _, _ = assumptions.symbols
    require_contraction(assumptions, series)
    return float((1 - float(series.scale) * mu) ** (series.terms + 1) * l0 * l1 / mu)


def require_contraction(assumptions: Assumptions, series: NeumannSeries) -> None:
    """Raise an error unless θ of a series is below 1 / L_1, as all theorems require.

    Example:
        >>> require_contraction(Assumptions(1.0, 1.0, 2.0), NeumannSeries(5, 0.5))
        Traceback (most recent call last):
        ...
        ValueError: NeumannSeries: scale is 0.5, but the theorems require below
        1/L_1 = 0.5. Lower scale.
    """
    if float(series.scale) >= 1 / assumptions.gradient_lipschitz:
        raise ValueError(
            f"NeumannSeries: scale is {series.scale}, but the theorems require below "
            f"1/L_1 = {1 / assumptions.gradient_lipschitz:.3g}. Lower scale."
        )
