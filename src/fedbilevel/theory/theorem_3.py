"""Theorem 3: LocalBSGVRM with a rate that decays as the cube root of the step."""

from math import log
from typing import NamedTuple

from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.schedules import CubeRootDecay
from fedbilevel.theory.assumptions import Assumptions
from fedbilevel.theory.bounds import (
    Bound,
    Start,
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


class DecayingSteps(NamedTuple):
    """The settings of Theorem 3.

    Attributes:
        upper_rate: the largest ρ_1.
        lower_rate: the largest ρ_2.
        mixing: α = β.
        learning_rate: η_t.
    """

    upper_rate: float
    lower_rate: float
    mixing: float
    learning_rate: CubeRootDecay


def local_bsgvrm_decay(
    assumptions: Assumptions,
    series: NeumannSeries,
    *,
    local_steps: int,
    devices: int,
    upper_rate: float | None = None,
    lower_rate: float | None = None,
) -> DecayingSteps:
    """Return Theorem 3's settings, with ρ_1 and ρ_2 at their ceilings.

    Args:
        assumptions: the problem's constants.
        series: the hypergradient's estimator.
        local_steps: p.
        devices: K.
        upper_rate: ρ_1; its ceiling by default.
        lower_rate: ρ_2; its ceiling by default.

    Example:
        >>> steps = local_bsgvrm_decay(
        ...     Assumptions(1.0, 1.0, 1.0),
        ...     NeumannSeries(terms=5, scale=0.5),
        ...     local_steps=10,
        ...     devices=4,
        ... )
        >>> f"{steps.learning_rate(0):.2e}"
        '5.81e-05'
    """
    require_contraction(assumptions, series)
    mu, _, l1, _, _ = assumptions.symbols
    p, k = local_steps, devices
    l_hat = estimator_lipschitz(assumptions, series)
    most_rho2 = min(15 * mu / 1174, 1 / (6 * l1), 10.0)
    rho2 = most_rho2 if lower_rate is None else lower_rate
    most_rho1 = min(
        rho2 * mu**2 / (60 * l1**2), mu / (100 * lower_error_factor(assumptions)), 10.0
    )
    rho1 = most_rho1 if upper_rate is None else upper_rate
    l_phi = objective_smoothness(assumptions)
    plateau = max(200.0**3 * k**2 * p**3, 8 * rho1**3 * l_phi**3 * k**2 / l_hat**3)
    return DecayingSteps(
        upper_rate=most_rho1,
        lower_rate=most_rho2,
        mixing=l_hat**2 / (3 * p * k**2) + l_hat**2 / k,
        learning_rate=CubeRootDecay(scale=k ** (2 / 3) / l_hat, plateau=plateau),
    )


def local_bsgvrm_decay_bound(
    assumptions: Assumptions,
    series: NeumannSeries,
    start: Start,
    *,
    upper_rate: float,
    lower_rate: float,
    local_steps: int,
    devices: int,
    steps: int,
    initial_batch_size: int,
    as_printed: bool = False,
) -> Bound:
    """Return Theorem 3's bound (4.11), of LocalBSGVRM with batches of 1.

    The theorem fixes α, β and η_t; `local_bsgvrm_decay` returns them. Two terms are
    corrected. As in Theorem 1, the paper prints the noise of the hypergradients with
    σ²; the corrected term has G². The printed vanishing terms omit 2ρ_1 L_Φ, the part
    of 1/η_t that is due to η_t ≤ 1/(2ρ_1 L_Φ).

    Args:
        assumptions: the problem's constants.
        series: the hypergradient's estimator.
        start: distance of the initial point from a solution.
        upper_rate: ρ_1.
        lower_rate: ρ_2.
        local_steps: p.
        devices: K.
        steps: T.
        initial_batch_size: B.
        as_printed: return the right-hand side of the paper, not the corrected one.

    Raises:
        ValueError: if a setting is above the theorem's ceiling.

    Example:
        >>> assumptions = Assumptions(1.0, 1.0, 1.0, deviation=0.1)
        >>> series = NeumannSeries(terms=20, scale=0.5)
        >>> decay = local_bsgvrm_decay(assumptions, series, local_steps=10, devices=10)
        >>> bound = local_bsgvrm_decay_bound(
        ...     assumptions,
        ...     series,
        ...     Start(objective_gap=1.0, lower_error=1.0),
        ...     upper_rate=decay.upper_rate,
        ...     lower_rate=decay.lower_rate,
        ...     local_steps=10,
        ...     devices=10,
        ...     steps=1_000_000,
        ...     initial_batch_size=100,
        ... )
        >>> bound.largest
        'upper_noise'
    """
    require_counts(
        devices=devices,
        steps=steps,
        local_steps=local_steps,
        initial_batch_size=initial_batch_size,
    )
    ceilings = local_bsgvrm_decay(
        assumptions,
        series,
        local_steps=local_steps,
        devices=devices,
        upper_rate=upper_rate,
        lower_rate=lower_rate,
    )
    require_covered(3, "lower_rate", lower_rate, ceilings.lower_rate)
    require_covered(3, "upper_rate", upper_rate, ceilings.upper_rate)
    mu = assumptions.strong_convexity
    variance = assumptions.deviation**2
    p, k, b = local_steps, devices, initial_batch_size
    g2 = estimator_variance(assumptions, series)
    l_tilde2 = lower_error_factor(assumptions) ** 2
    l_hat = estimator_lipschitz(assumptions, series)
    # 1/η_0 and 1/(T η_T) over L̂, at most, as docs/paper-notes.md derives them (16).
    smoothness = 2 * upper_rate * objective_smoothness(assumptions) / l_hat
    plateau_height = 200 * p + (0.0 if as_printed else smoothness)
    speed_up = 1 / (k * steps) ** (2 / 3)
    decay = plateau_height / steps + speed_up
    slow = (200 * p / steps + speed_up) * log(steps + 1)
    spread = 3 * (upper_rate**2 + lower_rate**2) * l_tilde2 / mu**2
    bias_factor = 4 * 200.0**3 * k**2 * p**3 / steps + 4
    return Bound(
        # (4.11), printed with 200p for the plateau's height
        objective_gap=2 * start.objective_gap / upper_rate * l_hat * decay,
        lower_start=l_hat
        * decay
        * 20
        * l_tilde2
        * start.lower_error
        / (lower_rate * mu),
        upper_opening=decay * 4 * plateau_height * g2 / b,
        lower_opening=decay
        * 1000
        * plateau_height
        * variance
        * l_tilde2
        / (3 * mu**2 * b),
        # (4.11), printed with σ², corrected to G²
        upper_noise=slow * 32 * (variance if as_printed else g2),
        # (4.11), as printed
        lower_noise=slow * 4000 * variance * l_tilde2 / (3 * mu**2),
        series_bias=bias_factor
        * series_bias(assumptions, series) ** 2
        * log(steps + 1),
        upper_drift=slow * spread * g2,
        lower_drift=slow * spread * variance,
    )
