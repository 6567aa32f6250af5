"""Theorem 3's bound against closed forms if 2ρ_1 L_Φ limits its learning rate.

f = ½x², linear from |x| = L_0 on, and g = ½y², so y stays at y* = 0 and ∇Φ(x) = x. The
theorem must hold for every L_21 of at least 0. η_t is constant while t is below its
plateau, and so small that sums over steps are integrals.
"""

from math import expm1
from typing import NamedTuple

import numpy as np
import pytest

from fedbilevel import NeumannSeries, theory
from fedbilevel.theory import Assumptions, Start


class Case(NamedTuple):
    """Constants of a problem, and settings that Theorem 3 covers."""

    l0: float
    l21: float
    steps: float
    terms: int
    lower_rate: float
    local_steps: int = 2
    devices: int = 1
    initial_batch_size: int = 1000

    @property
    def assumptions(self) -> Assumptions:
        return Assumptions(1.0, self.l0, 1.0, cross_lipschitz=self.l21)

    @property
    def decay(self) -> theory.DecayingSteps:
        return theory.local_bsgvrm_decay(
            self.assumptions,
            NeumannSeries(self.terms, 0.99),
            local_steps=self.local_steps,
            devices=self.devices,
            lower_rate=self.lower_rate,
        )

    def bound(self, gap: float, *, as_printed: bool = False) -> theory.Bound:
        return theory.local_bsgvrm_decay_bound(
            self.assumptions,
            NeumannSeries(self.terms, 0.99),
            Start(objective_gap=gap, lower_error=0.0),
            upper_rate=self.decay.upper_rate,
            lower_rate=self.lower_rate,
            local_steps=self.local_steps,
            devices=self.devices,
            steps=int(self.steps),
            initial_batch_size=self.initial_batch_size,
            as_printed=as_printed,
        )


def speeds(case: Case) -> tuple[float, float]:
    """Return a = αη² and r = ρ_1 η on the plateau of η."""
    assert case.steps < case.decay.learning_rate.plateau
    eta = float(case.decay.learning_rate(0))
    return case.decay.mixing * eta**2, case.decay.upper_rate * eta


def from_the_edge(case: Case) -> float:
    """Return the average of x² from x_0 = L_0 without noise: u = x and dx = −r x."""
    time = 2 * speeds(case)[1] * case.steps
    return case.l0**2 * -expm1(-time) / time


def from_the_opening(case: Case) -> float:
    """Return the average of E x² from x_0 = 0 due to the noise of u_0 alone.

    ξ = ±L_0/2 in f = ½x² + ξx, linear from |x| = L_0/2 on. e = u − x is
    e_0 exp(−at), and dx = −r(x + e), so x = r e_0 (exp(−rt) − exp(−at)) / (r − a).
    Later noise has mean 0 and is independent, so it can only make E x² larger.
    """
    a, r = speeds(case)
    variance = case.l0**2 / 4 / (case.devices * case.initial_batch_size)

    def integral(rate: float) -> float:
        return -expm1(-rate * case.steps) / rate

    squares = integral(2 * a) - 2 * integral(a + r) + integral(2 * r)
    return variance * (r / (r - a)) ** 2 * squares / case.steps


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case(1e15, 1e-11, 1e18, 9, 6e-5), "1.98e+29 < 9.52e+29"),
        (Case(1e9, 1e-9, 1e9, 3, 1e-2), "1.16e+17 < 6.32e+17"),
    ],
)
def test_the_printed_bound_lies_below_a_run_from_the_edge(case, expected):
    gap, true = case.l0**2 / 2, from_the_edge(case)
    printed = case.bound(gap, as_printed=True).total
    assert f"{printed:.2e} < {true:.2e}" == expected
    assert true < case.bound(gap).total


def test_the_printed_opening_lies_below_a_run_from_a_noisy_opening():
    case = Case(1e18, 6e-17, 4e30, 5, 1.4e-4, devices=2 * 10**6, initial_batch_size=1)
    true, corrected = from_the_opening(case), case.bound(0.0)
    printed = case.bound(0.0, as_printed=True).upper_opening
    # The other terms are corrected, so only the opening is too small.
    assert corrected._replace(upper_opening=printed).total < 1e-6 * true
    assert true < corrected.total


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_closed_form_lies_above_the_corrected_bound(seed):
    generator = np.random.default_rng(seed)
    violations, examined = 0, 0
    for _ in range(100):
        case = Case(
            l0=10.0 ** generator.uniform(0, 18),
            l21=10.0 ** generator.uniform(-18, 2),
            steps=10.0,
            terms=int(generator.integers(1, 40)),
            lower_rate=15 / 1174 * 10.0 ** generator.uniform(-6, 0),
            local_steps=int(generator.integers(2, 20)),
            devices=int(10.0 ** generator.uniform(0, 9)),
            initial_batch_size=int(10.0 ** generator.uniform(0, 6)),
        )
        a, r = speeds(case)
        case = case._replace(steps=10.0 ** generator.uniform(-1.5, 4) / min(a, r))
        # Closed forms hold on the plateau, and are inaccurate if a is near r.
        if case.steps > case.decay.learning_rate.plateau or abs(a - r) < 0.01 * r:
            continue
        examined += 1
        gap = case.l0**2 / 2
        for true, start in (from_the_edge(case), gap), (from_the_opening(case), 0.0):
            assert true <= case.bound(start).total, case
            violations += true > case.bound(start, as_printed=True).total
    # The search is effective only if it violates the printed bound.
    assert examined > 30
    assert violations > 10
