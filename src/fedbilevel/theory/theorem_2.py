"""Theorem 2: LocalBSGVRM with a fixed rate."""

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
    require_contraction,
    series_bias,
)


def local_bsgvrm_ceilings(
    assumptions: Assumptions,
    series: NeumannSeries,
    *,
    upper_mixing: float,
    lower_mixing: float,
    local_steps: int,
    devices: int,
    lower_rate: float | None = None,
) -> StepCeilings:
    """Return Theorem 2's ceilings (4.7) for a fixed learning rate, as printed.

    The printed theorem lacks η ≤ 1/(2ρ_1 L_Φ) of Theorem 1. It follows from the other
    ceilings for the dimensionally consistent L_Φ = L̃(1 + L_1/μ); see
    `docs/paper-notes.md`.

    Args:
        assumptions: the problem's constants.
        series: the hypergradient's estimator.
        upper_mixing: α.
        lower_mixing: β.
        local_steps: p.
        devices: K.
        lower_rate: ρ_2; its ceiling by default.

    Raises:
        ValueError: if a mixing weight exceeds L̂² / K.

    Example:
        >>> ceilings = local_bsgvrm_ceilings(
        ...     Assumptions(1.0, 1.0, 1.0),
        ...     NeumannSeries(terms=5, scale=0.5),
        ...     upper_mixing=1.0,
        ...     lower_mixing=1.0,
        ...     local_steps=10,
        ...     devices=4,
        ... )
        >>> f"{ceilings.learning_rate:.2e}"
        '5.81e-05'
    """
    require_contraction(assumptions, series)
    mu, _, l1, _, _ = assumptions.symbols
    alpha, beta, p = upper_mixing, lower_mixing, local_steps
    l_hat, l_tilde = (
        estimator_lipschitz(assumptions, series),
        lower_error_factor(assumptions),
    )
    most = l_hat**2 / devices
    for name, mixing in (("upper_mixing", alpha), ("lower_mixing", beta)):
        if mixing > most:
            raise ValueError(
                f"{name} is {mixing:.3g}, but Theorem 2 requires at most "
                f"L̂²/K = {most:.3g}. Lower {name}."
            )
    sampling = 16 * l_hat**2 / (alpha * devices) + 2000 * l1**2 * l_tilde**2 / (
        3 * beta * mu**2 * devices
    )
    total = sampling + 12 / 25 * (4 + 1000 * l_tilde**2 / (3 * mu**2) + sampling)
    most_rho2 = min(1 / (6 * l1), 15 * l_tilde**2 / mu / total, 10.0)
    rho2 = most_rho2 if lower_rate is None else lower_rate
    rho1 = min(rho2 * mu**2 / (20 * l_tilde * l1), 1 / (2 * sqrt(total)), 10.0)
    eta = min(1 / sqrt(alpha), 1 / sqrt(beta), 1 / (200 * p * l_hat))
    return StepCeilings(upper_rate=rho1, lower_rate=most_rho2, learning_rate=eta)


def local_bsgvrm_bound(
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
    initial_batch_size: int,
) -> Bound:
    """Return Theorem 2's bound (4.8), of LocalBSGVRM, a fixed rate, batches of 1.

    The bound is as printed: it has the noise of the hypergradients as G².

    Raises:
        ValueError: if a setting is above the theorem's ceiling.

    Example:
        >>> assumptions = Assumptions(1.0, 1.0, 1.0, deviation=0.1)
        >>> series = NeumannSeries(terms=20, scale=0.5)
        >>> settings = dict(
        ...     upper_mixing=1.0, lower_mixing=1.0, local_steps=10, devices=10
        ... )
        >>> ceilings = local_bsgvrm_ceilings(assumptions, series, **settings)
        >>> bound = local_bsgvrm_bound(
        ...     assumptions,
        ...     series,
        ...     Start(objective_gap=1.0, lower_error=1.0),
        ...     **ceilings._asdict(),
        ...     **settings,
        ...     steps=1_000_000,
        ...     initial_batch_size=100,
        ... )
        >>> bound.largest
        'upper_opening'
    """
    require_counts(
        devices=devices,
        steps=steps,
        local_steps=local_steps,
        initial_batch_size=initial_batch_size,
    )
    ceilings = local_bsgvrm_ceilings(
        assumptions,
        series,
        upper_mixing=upper_mixing,
        lower_mixing=lower_mixing,
        local_steps=local_steps,
        devices=devices,
        lower_rate=lower_rate,
    )
    require_covered(2, "lower_rate", lower_rate, ceilings.lower_rate)
    require_covered(2, "upper_rate", upper_rate, ceilings.upper_rate)
    require_covered(2, "learning_rate", learning_rate, ceilings.learning_rate)
    mu, _, l1, _, _ = assumptions.symbols
    variance = assumptions.deviation**2
    alpha, beta, eta, p = upper_mixing, lower_mixing, learning_rate, local_steps
    k, b = devices, initial_batch_size
    g2 = estimator_variance(assumptions, series)
    l_tilde2 = lower_error_factor(assumptions) ** 2
    l_hat2 = estimator_lipschitz(assumptions, series) ** 2
    # (4.8), as printed: the common factor of both drifts.
    spread = 48 * (upper_rate**2 + lower_rate**2) * p**2 * eta**4
    spread *= (
        4
        + 1000 * l_tilde2 / (3 * mu**2)
        + 16 * l_hat2 / (alpha * k)
        + 2000 * l1**2 * l_tilde2 / (3 * beta * mu**2 * k)
    )
    opening = eta**2 * steps * k * b
    return Bound(
        # (4.8), as printed
        objective_gap=2 * start.objective_gap / (eta * upper_rate * steps),
        lower_start=10 * l_tilde2 * start.lower_error / (lower_rate * mu * eta * steps),
        upper_opening=2 * g2 / (alpha * opening),
        lower_opening=250 * l_tilde2 * variance / (3 * beta * mu**2 * opening),
        upper_noise=8 * alpha * eta**2 * g2 / k,
        lower_noise=1000 * beta * eta**2 * variance * l_tilde2 / (3 * mu**2 * k),
        series_bias=4 * series_bias(assumptions, series) ** 2,
        upper_drift=alpha**2 * g2 * spread,
        lower_drift=beta**2 * variance * spread,
    )
