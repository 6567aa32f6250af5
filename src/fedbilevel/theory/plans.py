"""Plans: settings for other numbers of devices, accuracies or steps.

The corollaries give T, p, η, B and Q up to constants. The constants are taken from an
anchor: a plan with tested settings.
"""

from dataclasses import dataclass, field, replace
from math import ceil, exp, log

from fedbilevel.mathematics.schedules import CubeRootDecay
from fedbilevel.theory.scaling import (
    LOCAL_BSGM_LAW,
    ScalingLaw,
    scaled_local_steps,
    scaled_up,
)


@dataclass(frozen=True)
class Plan:
    """Settings of a run and the accuracy of its result.

    Attributes:
        law: `LOCAL_BSGM_LAW` or `LOCAL_BSGVRM_LAW`.
        devices: K.
        accuracy: ε, the average stationarity over the run's steps.
        steps: T.
        local_steps: p.
        learning_rate: η; for LocalBSGVRM also Theorem 3's decaying rate.
        upper_mixing: α.
        lower_mixing: β.
        terms: Q.
        batch_size: examples in each batch of a step.
        initial_batch_size: B, of LocalBSGVRM's first estimate; LocalBSGM has none.

    Raises:
        ValueError: if a setting is invalid.

    Example:
        >>> plan = Plan(
        ...     LOCAL_BSGM_LAW, devices=4, accuracy=0.01, steps=990, local_steps=20,
        ...     learning_rate=0.1, upper_mixing=1.0, lower_mixing=1.0, terms=7,
        ... )
        >>> plan.rounds, plan.samples
        (50, 40040)
    """

    law: ScalingLaw = field(repr=False)
    devices: int
    accuracy: float
    steps: int
    local_steps: int
    learning_rate: float | CubeRootDecay
    upper_mixing: float
    lower_mixing: float
    terms: int
    batch_size: int = 1
    initial_batch_size: int = 1

    def __post_init__(self) -> None:
        _require_positive(
            devices=self.devices,
            steps=self.steps,
            local_steps=self.local_steps,
            terms=self.terms,
            batch_size=self.batch_size,
            initial_batch_size=self.initial_batch_size,
            accuracy=self.accuracy,
        )
        rate = self.learning_rate
        if isinstance(rate, CubeRootDecay):
            if self.law == LOCAL_BSGM_LAW:
                raise ValueError(
                    "learning_rate is a CubeRootDecay, but no corollary covers "
                    "LocalBSGM with a decaying rate. Pass a number."
                )
            rate = float(rate(0))
        self.law.require_weight("upper_mixing", self.upper_mixing, rate)
        self.law.require_weight("lower_mixing", self.lower_mixing, rate)

    @property
    def rounds(self) -> int:
        """The number of rounds for T steps, ⌈T/p⌉."""
        return ceil(self.steps / self.local_steps)

    @property
    def samples(self) -> int:
        """The number of examples that all devices draw in these rounds.

        A step draws Q + 3 batches: ξ, ζ, ζ_0 and ζ_1 … ζ_Q. So does the first estimate.
        """
        has_opening = self.law.initial_batch_size is not None
        opening = self.initial_batch_size if has_opening else self.batch_size
        per_batch = opening + self.rounds * self.local_steps * self.batch_size
        return self.devices * (self.terms + 3) * per_batch


def plan_for_accuracy(
    anchor: Plan, *, devices: int, accuracy: float, contraction: float
) -> Plan:
    """Return a plan for K devices and an accuracy ε (Corollaries 2, 4 and 6).

    Args:
        anchor: tested settings, with their accuracy and number of devices.
        devices: K.
        accuracy: ε.
        contraction: 1 − θμ, between 0 and 1: each further term of the series multiplies
            the bias by it.

    Raises:
        ValueError: if p would be below 1, or a mixing weight above 1.

    Example:
        >>> from fedbilevel.theory import LOCAL_BSGVRM_LAW
        >>> anchor = Plan(
        ...     LOCAL_BSGVRM_LAW, devices=4, accuracy=0.04, steps=8000, local_steps=20,
        ...     learning_rate=0.1, upper_mixing=1.0, lower_mixing=1.0, terms=10,
        ...     initial_batch_size=64,
        ... )
        >>> plan = plan_for_accuracy(
        ...     anchor, devices=16, accuracy=0.01, contraction=0.8
        ... )
        >>> plan.steps, plan.local_steps, plan.learning_rate, plan.terms
        (16000, 10, 0.2, 14)
        >>> anchor.rounds, plan.rounds
        (400, 1600)
    """
    _require_positive(devices=devices, accuracy=accuracy)
    shrink = accuracy / anchor.accuracy
    if isinstance(anchor.learning_rate, CubeRootDecay):
        shrink = _decaying_shrink(anchor, devices / anchor.devices, log(shrink))
    return _scaled(anchor, devices, shrink, accuracy, contraction)


def plan_for_steps(
    anchor: Plan, *, devices: int, steps: int, contraction: float
) -> Plan:
    """Return a plan for K devices and T steps (Corollaries 1, 3 and 5).

    Args:
        anchor: tested settings, with their accuracy and number of devices.
        devices: K.
        steps: T.
        contraction: 1 − θμ, between 0 and 1: each further term of the series multiplies
            the bias by it.

    Raises:
        ValueError: if p would be below 1, or a mixing weight above 1.

    Example:
        >>> from fedbilevel.theory import LOCAL_BSGM_LAW
        >>> anchor = Plan(
        ...     LOCAL_BSGM_LAW, devices=4, accuracy=0.04, steps=1000, local_steps=20,
        ...     learning_rate=0.1, upper_mixing=1.0, lower_mixing=1.0, terms=10,
        ... )
        >>> plan = plan_for_steps(anchor, devices=16, steps=1000, contraction=0.8)
        >>> plan.accuracy, plan.local_steps, plan.learning_rate
        (0.02, 7, 0.2)
    """
    _require_positive(devices=devices, steps=steps)
    shrink = anchor.law.accuracy(
        devices=devices / anchor.devices, steps=steps / anchor.steps
    )
    accuracy = anchor.accuracy * shrink
    if isinstance(anchor.learning_rate, CubeRootDecay):  # Corollary 5's log(T + 1)
        accuracy *= log(steps + 1) / log(anchor.steps + 1)
    plan = _scaled(anchor, devices, shrink, accuracy, contraction)
    return replace(plan, steps=steps)  # without the rounding of _scaled


def _require_positive(**values: int | float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"Plan: {name} is {value}, expected above 0.")


def _scaled(
    anchor: Plan, devices: int, shrink: float, accuracy: float, contraction: float
) -> Plan:
    if not 0 < contraction < 1:
        raise ValueError(
            f"contraction = 1 − θμ is {contraction}, expected above 0 and below 1. Use "
            "a series scale θ below 1/L_1."
        )
    factors = anchor.law.factors(devices=devices / anchor.devices, accuracy=shrink)
    rate = anchor.learning_rate
    # Δ_Q ∝ (1 − θμ)^(Q+1), and its square must shrink by the factor of all other terms.
    more_terms = ceil(log(shrink) / (2 * log(contraction)) - 1e-9)
    return replace(
        anchor,
        devices=devices,
        accuracy=accuracy,
        steps=scaled_up(anchor.steps, factors.steps),
        local_steps=scaled_local_steps(anchor.local_steps, factors.local_steps),
        learning_rate=(
            factors.decay(rate)
            if isinstance(rate, CubeRootDecay)
            else rate * factors.learning_rate
        ),
        upper_mixing=anchor.upper_mixing * factors.mixing,
        lower_mixing=anchor.lower_mixing * factors.mixing,
        terms=max(anchor.terms + more_terms, 1),
        initial_batch_size=scaled_up(
            anchor.initial_batch_size, factors.initial_batch_size
        ),
    )


def _decaying_shrink(anchor: Plan, devices: float, change: float) -> float:
    # Corollary 5: ε ∝ log(T + 1) (KT)^(-2/3). Return the change of the second factor
    # for a given change of log ε; for 4 steps and more the product falls with T.
    def shrink(log_steps: float) -> float:
        steps = exp(log_steps) / anchor.steps
        return anchor.law.accuracy(devices=devices, steps=steps)

    def excess(log_steps: float) -> float:
        factor = log(exp(log_steps) + 1) / log(anchor.steps + 1)
        return log(shrink(log_steps) * factor) - change

    from scipy.optimize import brentq

    least = most = log(4.0)
    while excess(most) > 0:
        most *= 2
    return shrink(brentq(excess, least, most, xtol=1e-13) if most > least else least)
