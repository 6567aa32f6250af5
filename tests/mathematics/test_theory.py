"""The constants against the paper's printed formulas, in exact fractions."""

# The checker has no type for a mixture of fractions and floats.
# mypy: disable-error-code="operator, arg-type, call-overload, type-var"

from fractions import Fraction
from math import isclose, sqrt

import numpy as np
import pytest

from fedbilevel import NeumannSeries, theory
from fedbilevel.theory import Assumptions

MU, L0, L1, L21, L22, SIGMA = (
    Fraction(1, 2),
    Fraction(3),
    Fraction(2),
    Fraction(5, 4),
    Fraction(7, 3),
    Fraction(3, 2),
)
THETA, Q = Fraction(1, 4), 6
ASSUMPTIONS = Assumptions(*map(float, (MU, L0, L1, L21, L22, SIGMA)))
SERIES = NeumannSeries(Q, float(THETA))

L_PHI = (
    L1
    + (2 * L1**2 + L21 * L0**2) / MU
    + (L22 * L1 * L0 + L1**3 + L21 * L0 * L1) / MU**2
    + (L22 * L1**2 * L0) / MU**3
)
L_HAT_SQUARED = (
    2 * L1**2
    + 4 * THETA**2 * L0**2 * L21**2 * (Q + 1) ** 2
    + 8 * THETA**2 * L1**4 * (Q + 1) ** 2
    + 2 * THETA**4 * L0**2 * L1**2 * L22**2 * Q**2 * (Q + 1) ** 2
)
L_TILDE = L1 + L1**2 / MU + L0 * L21 / MU + L0 * L1 * L22 / MU**2
G_SQUARED = (
    2 * L0**2
    + 12 * THETA**2 * L0**2 * L1**2 * (Q + 1) ** 2
    + 4 * THETA**4 * L0**2 * L1**2 * (Q + 2) * (Q + 1) ** 2 * SIGMA**2
)
DELTA = (1 - THETA * MU) ** (Q + 1) * L0 * L1 / MU


def test_constants_equal_exact_fractions():
    assert isclose(theory.objective_smoothness(ASSUMPTIONS), L_PHI)
    l_hat = theory.estimator_lipschitz(ASSUMPTIONS, SERIES)
    assert isclose(l_hat**2, L_HAT_SQUARED)
    assert isclose(theory.lower_error_factor(ASSUMPTIONS), L_TILDE)
    assert isclose(theory.estimator_variance(ASSUMPTIONS, SERIES), G_SQUARED)
    assert isclose(theory.series_bias(ASSUMPTIONS, SERIES), DELTA)


def test_theorem_1_ceilings():
    alpha, beta, p = Fraction(3, 2), Fraction(2), 4
    inner = 4 * L_HAT_SQUARED / alpha**2
    rho2 = min(
        (6 * L_TILDE**2 / MU)
        / (inner + 400 * L1**2 * L_TILDE**2 / (3 * beta**2 * MU**2)),
        1 / (6 * L1),
    )
    root = sqrt(inner + 500 * L1**2 * L_TILDE**2 / (3 * beta**2 * MU**2))
    rho1 = min(3 * rho2 * MU**2 / (50 * L1 * L_TILDE), 0.25 / root)
    eta = min(
        1 / alpha,
        1 / beta,
        1 / (2 * rho1 * L_PHI),
        1
        / (
            3
            * p
            * float(alpha**2 + beta**2) ** 0.25
            * float(rho1**2 + rho2**2) ** 0.25
            * float(L_HAT_SQUARED) ** 0.25
        ),
        1,
    )
    got = theory.local_bsgm_ceilings(
        ASSUMPTIONS, SERIES, upper_mixing=1.5, lower_mixing=2.0, local_steps=4
    )
    np.testing.assert_allclose(got, [float(rho1), float(rho2), float(eta)], rtol=1e-12)


def test_theorem_2_ceilings():
    alpha, beta, p, k = Fraction(3, 2), Fraction(2), 4, 8
    first = 16 * L_HAT_SQUARED / (alpha * k)
    second = 2000 * L1**2 * L_TILDE**2 / (3 * beta * MU**2 * k)
    total = (
        first
        + second
        + Fraction(12, 25) * (4 + 1000 * L_TILDE**2 / (3 * MU**2) + first + second)
    )
    rho2 = min(1 / (6 * L1), (15 * L_TILDE**2 / MU) / total, 10)
    rho1 = min(rho2 * MU**2 / (20 * L_TILDE * L1), 0.5 / sqrt(total), 10)
    eta = min(
        1 / sqrt(alpha), 1 / sqrt(beta), 1 / (200 * p * sqrt(float(L_HAT_SQUARED)))
    )
    got = theory.local_bsgvrm_ceilings(
        ASSUMPTIONS,
        SERIES,
        upper_mixing=1.5,
        lower_mixing=2.0,
        local_steps=4,
        devices=8,
    )
    np.testing.assert_allclose(got, [float(rho1), float(rho2), eta], rtol=1e-12)


def test_theorem_3_settings():
    p, k = 3, 5
    l_hat = sqrt(float(L_HAT_SQUARED))
    got = theory.local_bsgvrm_decay(ASSUMPTIONS, SERIES, local_steps=p, devices=k)
    rho2 = min(15 * MU / 1174, 1 / (6 * L1), 10)
    rho1 = min(rho2 * MU**2 / (60 * L1**2), MU / (100 * L_TILDE), 10)
    assert isclose(got.lower_rate, rho2)
    assert isclose(got.upper_rate, rho1)
    assert isclose(got.mixing, l_hat**2 / (3 * p * k**2) + l_hat**2 / k)
    for t in (0, 10, 10**10):
        third = 8 * float(rho1) ** 3 * float(L_PHI) ** 3 * k**2 / l_hat**3
        w = max(2, 200**3 * k**2 * p**3 - t, third - t)
        eta = (k ** (2 / 3) / l_hat) / (w + t) ** (1 / 3)
        assert isclose(float(got.learning_rate(t)), eta, rel_tol=1e-9)


def product(assumptions: Assumptions, smoothness: float, **settings) -> float:
    """Return 2ρ_1 η L_Φ at Theorem 2's ceilings; Theorem 1 requires at most 1."""
    series = settings["series"]
    most = theory.estimator_lipschitz(assumptions, series) ** 2 / settings["devices"]
    ceilings = theory.local_bsgvrm_ceilings(
        assumptions,
        series,
        upper_mixing=settings["share"] * most,
        lower_mixing=settings["share"] * most,
        local_steps=1,
        devices=settings["devices"],
    )
    return 2 * ceilings.upper_rate * ceilings.learning_rate * smoothness


@pytest.mark.slow
def test_what_theorem_2_lacks_follows_where_dimensions_are_right():
    generator = np.random.default_rng(0)
    for _ in range(2000):
        mu, condition, *others = 10 ** generator.uniform(
            [-4, 0, -6, -6, -6], [4, 3, 6, 6, 6]
        )
        l0, l21, l22 = others
        l1 = mu * condition
        assumptions = Assumptions(mu, l0, l1, l21, l22)
        right = theory.lower_error_factor(assumptions) * (1 + l1 / mu)
        # This is L_Φ with L_21 L_0 / μ instead of L_21 L_0² / μ.
        printed = theory.objective_smoothness(assumptions)
        assert isclose(right + l21 * (l0**2 - l0) / mu, printed, rel_tol=1e-9)
        terms, scale = generator.integers(1, 200), 10 ** generator.uniform(-3, -0.01)
        settings = {
            "series": NeumannSeries(int(terms), scale / l1),
            "devices": int(generator.integers(1, 100)),
            "share": 10 ** generator.uniform(-2, -1e-3),
        }
        assert product(assumptions, right, **settings) < 1e-4


def test_what_theorem_2_lacks_does_not_follow_from_its_printed_constants():
    assumptions = Assumptions(1.2, 1e8, 1.5, 1e-4, 0.0)
    settings = {"series": NeumannSeries(6, 1e-6), "devices": 1, "share": 0.999}
    printed = theory.objective_smoothness(assumptions)
    assert product(assumptions, printed, **settings) > 1


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_estimators_variance_is_below_g_squared_without_sigma(noise):
    # All are scalars: b = ±L_0 of ∇y f, a = ±L_0 of ∇x f, J = L_1, and Hessians that
    # are μ or L_1 with equal probability if there is noise.
    l0, l1, mu, terms, scale = 1.3, 2.0, 0.4, 5, 0.45
    generator = np.random.default_rng(0)
    draws = 200_000
    signs = generator.choice([-1.0, 1.0], size=draws)
    power = total = signs * l0
    for _ in range(terms):
        curved = mu + (l1 - mu) * generator.integers(2, size=draws) * (noise > 0)
        power = (1 - scale * curved) * power
        total = total + power
    sampled = -signs * l0 - l1 * scale * total
    bound = 2 * l0**2 + 2 * scale**2 * l0**2 * l1**2 * (terms + 1) ** 2
    assert 0.05 * bound < np.var(sampled) < bound
    assumptions = Assumptions(mu, l0, l1, deviation=0.0)
    g2 = theory.estimator_variance(assumptions, NeumannSeries(terms, scale))
    assert bound < g2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Assumptions(0.0, 1.0, 1.0), "strong_convexity"),
        (lambda: theory.series_bias(ASSUMPTIONS, NeumannSeries(3, 0.5)), "below 1/L_1"),
        (
            lambda: theory.local_bsgvrm_ceilings(
                ASSUMPTIONS,
                SERIES,
                upper_mixing=1e9,
                lower_mixing=1.0,
                local_steps=1,
                devices=1,
            ),
            r"upper_mixing is 1e\+09, but Theorem 2 requires at most",
        ),
    ],
)
def test_what_the_theorems_do_not_cover_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
