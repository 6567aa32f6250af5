"""The paper's constants and the step-size ceilings of its theorems.

Where the paper's print is inconsistent, `docs/paper-notes.md` says how it is read.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.schedules import CubeRootDecay


@dataclass(frozen=True)
class Assumptions:
    """The constants of Assumptions 1 to 3, which every bound is made of.

    Attributes:
        strong_convexity: μ of the lower loss in y.
        upper_lipschitz: L_0, of the upper loss.
        gradient_lipschitz: L_1, of the gradients of both losses.
        cross_lipschitz: L_21, of ∇²xy g.
        curvature_lipschitz: L_22, of ∇²yy g.
        deviation: σ, the standard deviation of a sampled ∇g.

    Example:
        >>> from fedbilevel.mathematics.theory import Assumptions
        >>> Assumptions(
        ...     strong_convexity=0.5, upper_lipschitz=1.0, gradient_lipschitz=2.0
        ... ).deviation
        0.0
    """

    strong_convexity: float
    upper_lipschitz: float
    gradient_lipschitz: float
    cross_lipschitz: float = 0.0
    curvature_lipschitz: float = 0.0
    deviation: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.strong_convexity <= self.gradient_lipschitz:
            raise ValueError(
                f"strong_convexity μ={self.strong_convexity} must lie above 0 and at "
                f"most at gradient_lipschitz L_1={self.gradient_lipschitz}, since both "
                "bound the same Hessian."
            )


class StepCeilings(NamedTuple):
    """The largest step settings that a theorem allows.

    Attributes:
        upper_rate: ρ_1.
        lower_rate: ρ_2.
        learning_rate: η at those rates.

    Example:
        >>> StepCeilings(0.1, 0.2, 0.3).learning_rate
        0.3
    """

    upper_rate: float
    lower_rate: float
    learning_rate: float


class DecayingSteps(NamedTuple):
    """The settings of Theorem 3.

    Attributes:
        upper_rate: the largest ρ_1.
        lower_rate: the largest ρ_2.
        mixing: α = β.
        learning_rate: η_t.

    Example:
        >>> DecayingSteps(0.1, 0.2, 1.0, CubeRootDecay(1.0)).mixing
        1.0
    """

    upper_rate: float
    lower_rate: float
    mixing: float
    learning_rate: CubeRootDecay


def objective_smoothness(assumptions: Assumptions) -> float:
    """Return L_Φ, the Lipschitz constant of ∇Φ.

    Example:
        >>> objective_smoothness(Assumptions(1.0, 1.0, 1.0))
        4.0
    """
    mu, l0, l1, l21, l22 = _symbols(assumptions)
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
    _, l0, l1, l21, l22 = _symbols(assumptions)
    q, theta = series.terms, float(series.scale)
    return sqrt(
        2 * l1**2
        + 4 * theta**2 * l0**2 * l21**2 * (q + 1) ** 2
        + 8 * theta**2 * l1**4 * (q + 1) ** 2
        + 2 * theta**4 * l0**2 * l1**2 * l22**2 * q**2 * (q + 1) ** 2
    )


def lower_error_factor(assumptions: Assumptions) -> float:
    """Return L̃, which turns an error of y into an error of the hypergradient.

    Example:
        >>> lower_error_factor(Assumptions(1.0, 1.0, 1.0))
        2.0
    """
    mu, l0, l1, l21, l22 = _symbols(assumptions)
    return l1 + l1**2 / mu + l0 * l21 / mu + l0 * l1 * l22 / mu**2


def estimator_variance(assumptions: Assumptions, series: NeumannSeries) -> float:
    """Return G², the bound of the sampled hypergradient's variance.

    The paper prints this expression as G and then uses G squared; the expression has
    the dimension of a squared gradient, so it is read as G².

    Example:
        >>> estimator_variance(
        ...     Assumptions(1.0, 1.0, 1.0), NeumannSeries(terms=1, scale=0.5)
        ... )
        14.0
    """
    _, l0, l1, _, _ = _symbols(assumptions)
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
    mu, l0, l1, _, _ = _symbols(assumptions)
    _require_contraction(assumptions, series)
    return float((1 - float(series.scale) * mu) ** (series.terms + 1) * l0 * l1 / mu)


def local_bsgm_ceilings(
    assumptions: Assumptions,
    series: NeumannSeries,
    *,
    upper_mixing: float,
    lower_mixing: float,
    local_steps: int,
) -> StepCeilings:
    """Return Theorem 1's ceilings: ρ_2 first, ρ_1 at that ρ_2, then η at both.

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
    _require_contraction(assumptions, series)
    mu, _, l1, _, _ = _symbols(assumptions)
    alpha, beta, p = upper_mixing, lower_mixing, local_steps
    l_hat, l_tilde = (
        estimator_lipschitz(assumptions, series),
        lower_error_factor(assumptions),
    )
    hat_term = 4 * l_hat**2 / alpha**2
    tilde_term = l1**2 * l_tilde**2 / (3 * beta**2 * mu**2)
    rho2 = min(6 * l_tilde**2 / mu / (hat_term + 400 * tilde_term), 1 / (6 * l1))
    rho1 = min(
        3 * rho2 * mu**2 / (50 * l1 * l_tilde),
        1 / (4 * sqrt(hat_term + 500 * tilde_term)),
    )
    drift = (alpha**2 + beta**2) ** 0.25 * (rho1**2 + rho2**2) ** 0.25 * sqrt(l_hat)
    eta = min(
        1 / alpha,
        1 / beta,
        1 / (2 * rho1 * objective_smoothness(assumptions)),
        1 / (3 * p * drift),
        1.0,
    )
    return StepCeilings(upper_rate=rho1, lower_rate=rho2, learning_rate=eta)


def local_bsgvrm_ceilings(
    assumptions: Assumptions,
    series: NeumannSeries,
    *,
    upper_mixing: float,
    lower_mixing: float,
    local_steps: int,
    devices: int,
) -> StepCeilings:
    """Return Theorem 2's ceilings for a fixed learning rate.

    Raises:
        ValueError: if a mixing weight exceeds L̂² / K, which the theorem asks for.

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
    _require_contraction(assumptions, series)
    mu, _, l1, _, _ = _symbols(assumptions)
    alpha, beta, p = upper_mixing, lower_mixing, local_steps
    l_hat, l_tilde = (
        estimator_lipschitz(assumptions, series),
        lower_error_factor(assumptions),
    )
    most = l_hat**2 / devices
    for name, mixing in (("upper_mixing", alpha), ("lower_mixing", beta)):
        if mixing > most:
            raise ValueError(
                f"Theorem 2 asks for {name} at most L̂²/K = {most:.3g}, "
                f"but it is {mixing:.3g}; lower it."
            )
    sampling = 16 * l_hat**2 / (alpha * devices) + 2000 * l1**2 * l_tilde**2 / (
        3 * beta * mu**2 * devices
    )
    total = sampling + 12 / 25 * (4 + 1000 * l_tilde**2 / (3 * mu**2) + sampling)
    rho2 = min(1 / (6 * l1), 15 * l_tilde**2 / mu / total, 10.0)
    rho1 = min(rho2 * mu**2 / (20 * l_tilde * l1), 1 / (2 * sqrt(total)), 10.0)
    eta = min(1 / sqrt(alpha), 1 / sqrt(beta), 1 / (200 * p * l_hat))
    return StepCeilings(upper_rate=rho1, lower_rate=rho2, learning_rate=eta)


def local_bsgvrm_decay(
    assumptions: Assumptions,
    series: NeumannSeries,
    *,
    local_steps: int,
    devices: int,
) -> DecayingSteps:
    """Return Theorem 3's settings, with ρ_1 and ρ_2 at their ceilings.

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
    _require_contraction(assumptions, series)
    mu, _, l1, _, _ = _symbols(assumptions)
    p, k = local_steps, devices
    l_hat = estimator_lipschitz(assumptions, series)
    rho2 = min(15 * mu / 1174, 1 / (6 * l1), 10.0)
    rho1 = min(
        rho2 * mu**2 / (60 * l1**2), mu / (100 * lower_error_factor(assumptions)), 10.0
    )
    l_phi = objective_smoothness(assumptions)
    plateau = max(200.0**3 * k**2 * p**3, 8 * rho1**3 * l_phi**3 * k**2 / l_hat**3)
    return DecayingSteps(
        upper_rate=rho1,
        lower_rate=rho2,
        mixing=l_hat**2 / (3 * p * k**2) + l_hat**2 / k,
        learning_rate=CubeRootDecay(scale=k ** (2 / 3) / l_hat, plateau=plateau),
    )


def _symbols(assumptions: Assumptions) -> tuple[float, float, float, float, float]:
    return (
        assumptions.strong_convexity,
        assumptions.upper_lipschitz,
        assumptions.gradient_lipschitz,
        assumptions.cross_lipschitz,
        assumptions.curvature_lipschitz,
    )


def _require_contraction(assumptions: Assumptions, series: NeumannSeries) -> None:
    if float(series.scale) >= 1 / assumptions.gradient_lipschitz:
        raise ValueError(
            f"the theorems ask for a series scale θ below 1/L_1 = "
            f"{1 / assumptions.gradient_lipschitz:.3g}, but scale={series.scale}; "
            "lower it."
        )
