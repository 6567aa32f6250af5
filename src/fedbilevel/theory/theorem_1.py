"""Theorem 1: LocalBSGM with a fixed rate."""

from math import sqrt

from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.theory.assumptions import Assumptions
from fedbilevel.theory.bounds import (
    Bound,
    Start,
    StepCeilings,
    require_counts,
    require_covered,
)
from fedbilevel.theory.constants import (
    estimator_lipschitz,
    estimator_variance,
    lower_error_factor,
    objective_smoothness,
    require_contraction,
    series_bias,
)


def local_bsgm_ceilings(
    assumptions: Assumptions,
    series: NeumannSeries,
    *,
    upper_mixing: float,
    lower_mixing: float,
    local_steps: int,
    upper_rate: float | None = None,
    lower_rate: float | None = None,
) -> StepCeilings:
    """Return Theorem 1's ceilings (above 4.3): ρ_2, ρ_1 at that ρ_2, then η at both.

    Args:
        assumptions: the problem's constants.
        series: the hypergradient's estimator.
        upper_mixing: α.
        lower_mixing: β.
        local_steps: p.
        upper_rate: ρ_1; its ceiling by default.
        lower_rate: ρ_2; its ceiling by default.

    Example:
        >>> ceilings = local_bsgm_ceilings(
        ...     Assumptions(1.0, 1.0, 1.0),
        ...     NeumannSeries(terms=5, scale=0.5),
        ...     upper_mixing=1.0,
        ...     lower_mixing=1.0,
        ...     local_steps=10,
        ... )
        >>> f"{ceilings.learning_rate:.4f}"
        '0.0562'
    """
    require_contraction(assumptions, series)
    mu, _, l1, _, _ = assumptions.symbols
    alpha, beta, p = upper_mixing, lower_mixing, local_steps
    l_hat, l_tilde = (
        estimator_lipschitz(assumptions, series),
        lower_error_factor(assumptions),
    )
    hat_term = 4 * l_hat**2 / alpha**2
    tilde_term = l1**2 * l_tilde**2 / (3 * beta**2 * mu**2)
    most_rho2 = min(6 * l_tilde**2 / mu / (hat_term + 400 * tilde_term), 1 / (6 * l1))
    rho2 = most_rho2 if lower_rate is None else lower_rate
    most_rho1 = min(
        3 * rho2 * mu**2 / (50 * l1 * l_tilde),
        1 / (4 * sqrt(hat_term + 500 * tilde_term)),
    )
    rho1 = most_rho1 if upper_rate is None else upper_rate
    drift = (alpha**2 + beta**2) ** 0.25 * (rho1**2 + rho2**2) ** 0.25 * sqrt(l_hat)
    eta = min(
        1 / alpha,
        1 / beta,
        1 / (2 * rho1 * objective_smoothness(assumptions)),
        1 / (3 * p * drift),
        1.0,
    )
    return StepCeilings(upper_rate=most_rho1, lower_rate=most_rho2, learning_rate=eta)


def local_bsgm_bound(
    assumptions: Assumptions,
    series: NeumannSeries,
    start: Start,
    *,
    upper_rate: float,
    lower_rate: float,
    learning_rate: float,
    upper_mixing: float,
    lower_mixing: float,
    local_steps: int,
    devices: int,
    steps: int,
    as_printed: bool = False,
) -> Bound:
    """Return Theorem 1's bound (4.3), of LocalBSGM with a fixed rate, batches of 1.

    The paper prints the noise of the hypergradients as 4αησ²/K. That is not a bound if
    f is noisy: with σ = 0 it vanishes, but the noise does not. The corrected term is
    4αηG²/K; `docs/maths.md` derives it.

    Args:
        assumptions: the problem's constants.
        series: the hypergradient's estimator.
        start: distance of the initial point from a solution.
        upper_rate: ρ_1.
        lower_rate: ρ_2.
        learning_rate: η.
        upper_mixing: α.
        lower_mixing: β.
        local_steps: p.
        devices: K.
        steps: T.
        as_printed: return the right-hand side of the paper, not the corrected one.

    Raises:
        ValueError: if a setting is above the theorem's ceiling.

    Example:
        >>> assumptions = Assumptions(1.0, 1.0, 1.0, deviation=0.1)
        >>> series = NeumannSeries(terms=20, scale=0.5)
        >>> settings = dict(upper_mixing=1.0, lower_mixing=1.0, local_steps=10)
        >>> ceilings = local_bsgm_ceilings(assumptions, series, **settings)
        >>> bound = local_bsgm_bound(
        ...     assumptions,
        ...     series,
        ...     Start(objective_gap=1.0, lower_error=1.0),
        ...     **ceilings._asdict(),
        ...     **settings,
        ...     devices=10,
        ...     steps=1_000_000,
        ... )
        >>> bound.largest
        'upper_drift'
    """
    require_counts(
        devices=devices,
        steps=steps,
        local_steps=local_steps,
    )
    ceilings = local_bsgm_ceilings(
        assumptions,
        series,
        upper_mixing=upper_mixing,
        lower_mixing=lower_mixing,
        local_steps=local_steps,
        upper_rate=upper_rate,
        lower_rate=lower_rate,
    )
    require_covered(1, "lower_rate", lower_rate, ceilings.lower_rate)
    require_covered(1, "upper_rate", upper_rate, ceilings.upper_rate)
    require_covered(1, "learning_rate", learning_rate, ceilings.learning_rate)
    mu, _, l1, _, _ = assumptions.symbols
    variance = assumptions.deviation**2
    alpha, beta, eta, p = upper_mixing, lower_mixing, learning_rate, local_steps
    g2 = estimator_variance(assumptions, series)
    l_tilde2 = lower_error_factor(assumptions) ** 2
    l_hat2 = estimator_lipschitz(assumptions, series) ** 2
    # (4.3), as printed: 48 (ρ_1² + ρ_2²) p² η² times the common factor of both drifts.
    tilde = 500 * l1**2 * l_tilde2 / (3 * mu**2)
    spread = 48 * (upper_rate**2 + lower_rate**2) * p**2 * eta**2
    spread *= p**2 * eta**2 * (2 * l_hat2 + tilde) + (
        4 * l_hat2 / alpha**2 + tilde / beta**2
    )
    return Bound(
        # (4.3), as printed
        objective_gap=2 * start.objective_gap / (eta * upper_rate * steps),
        lower_start=20 * l_tilde2 * start.lower_error / (eta * steps * lower_rate * mu),
        upper_opening=4 * g2 / (alpha * eta * steps),
        lower_opening=500 * l_tilde2 * variance / (3 * eta * steps * beta * mu**2),
        # (4.3), printed with σ², corrected to G²
        upper_noise=4 * alpha * eta * (variance if as_printed else g2) / devices,
        # (4.3), as printed
        lower_noise=500 * beta * eta * variance * l_tilde2 / (3 * devices * mu**2),
        series_bias=4 * series_bias(assumptions, series) ** 2,
        upper_drift=alpha**2 * g2 * spread,
        lower_drift=beta**2 * variance * spread,
    )
