"""The theorems' bounds against the printed ones, in exact fractions, and scaling."""

# The checker has no type for a mixture of fractions and floats.
# mypy: disable-error-code="operator, arg-type, call-overload, type-var"

from fractions import Fraction
from math import log
from typing import Any

import numpy as np
import pytest

from fedbilevel import theory
from tests.mathematics.test_theory import (
    ASSUMPTIONS,
    DELTA,
    G_SQUARED,
    L1,
    L_HAT_SQUARED,
    L_TILDE,
    MU,
    SERIES,
    SIGMA,
)

# Cubes, so that K^(2/3) and T^(2/3) are integers.
K, T, P, B = 8, 10**9, 3, 7
GAP, DISTANCE = Fraction(5, 2), Fraction(9, 4)
ALPHA, BETA = Fraction(3, 2), Fraction(2)
START = theory.Start(float(GAP), float(DISTANCE))


def fixed(ceilings, **settings) -> dict[str, Any]:
    """Return settings at a quarter of the ceilings, so that tests can vary them."""
    return {
        "upper_rate": ceilings.upper_rate / 4,
        "lower_rate": ceilings.lower_rate,
        "learning_rate": ceilings.learning_rate / 4,
        "upper_mixing": float(ALPHA),
        "lower_mixing": float(BETA),
        "local_steps": P,
        "devices": K,
        "steps": T,
        **settings,
    }


MIXING: dict[str, Any] = {"upper_mixing": float(ALPHA), "lower_mixing": float(BETA)}
BSGM = fixed(theory.local_bsgm_ceilings(ASSUMPTIONS, SERIES, **MIXING, local_steps=P))
BSGVRM = fixed(
    theory.local_bsgvrm_ceilings(
        ASSUMPTIONS, SERIES, **MIXING, local_steps=P, devices=K
    ),
    initial_batch_size=B,
)
DECAY: dict[str, Any] = {
    "upper_rate": 1e-7,
    "lower_rate": 1e-3,
    "local_steps": P,
    "devices": K,
    "steps": T,
    "initial_batch_size": B,
}
BOUNDS: dict[str, Any] = {
    "Theorem 1": (theory.local_bsgm_bound, BSGM),
    "Theorem 2": (theory.local_bsgvrm_bound, BSGVRM),
    "Theorem 3": (theory.local_bsgvrm_decay_bound, DECAY),
}


def evaluate(theorem: str, **changes) -> theory.Bound:
    function, settings = BOUNDS[theorem]
    bound: theory.Bound = function(
        ASSUMPTIONS, SERIES, START, **{**settings, **changes}
    )
    return bound


@pytest.mark.parametrize("theorem", ["Theorem 1", "Theorem 3"])
def test_the_corrected_noise_has_g_squared_for_sigma_squared(theorem):
    printed, corrected = (
        evaluate(theorem, as_printed=choice) for choice in (True, False)
    )
    noise = printed.upper_noise * float(G_SQUARED / SIGMA**2)
    expected = printed._replace(upper_noise=noise)
    # Another test covers the first four terms of Theorem 3, which are corrected too.
    others = slice(4 if theorem == "Theorem 3" else 0, None)
    np.testing.assert_allclose(corrected[others], expected[others], 1e-12)


def test_theorem_3_has_the_smoothness_of_the_objective_in_the_terms_that_fade():
    printed, corrected = (
        evaluate("Theorem 3", as_printed=choice) for choice in (True, False)
    )
    l_hat = float(L_HAT_SQUARED) ** 0.5
    height = 200 * P * l_hat
    extra = 2 * DECAY["upper_rate"] * theory.objective_smoothness(ASSUMPTIONS)
    before = height / T + l_hat / (4 * 10**6)
    pace = (before + extra / T) / before
    paces = np.array([pace, pace, *[pace * (height + extra) / height] * 2])
    np.testing.assert_allclose(corrected[:4], paces * printed[:4], 1e-12)


def test_theorem_1_as_printed():
    rho1, rho2, eta = (
        Fraction(BSGM[name]) for name in ("upper_rate", "lower_rate", "learning_rate")
    )
    big = 2 * L_HAT_SQUARED + Fraction(500) * L1**2 * L_TILDE**2 / (3 * MU**2)
    small = 4 * L_HAT_SQUARED / ALPHA**2 + 500 * L1**2 * L_TILDE**2 / (
        3 * BETA**2 * MU**2
    )
    rho = rho1**2 + rho2**2
    printed = [
        2 * GAP / (eta * rho1 * T),
        20 * L_TILDE**2 / (eta * T * rho2 * MU) * DISTANCE,
        4 * G_SQUARED / (ALPHA * eta * T),
        500 * L_TILDE**2 * SIGMA**2 / (3 * eta * T * BETA * MU**2),
        4 * ALPHA * eta * SIGMA**2 / K,
        500 * BETA * eta * SIGMA**2 * L_TILDE**2 / (3 * K * MU**2),
        4 * DELTA**2,
        48 * ALPHA**2 * eta**4 * P**4 * rho * big * G_SQUARED,
        48 * BETA**2 * P**4 * eta**4 * rho * big * SIGMA**2,
        48 * ALPHA**2 * P**2 * eta**2 * rho * small * G_SQUARED,
        48 * BETA**2 * P**2 * eta**2 * rho * small * SIGMA**2,
    ]
    got = evaluate("Theorem 1", as_printed=True)
    np.testing.assert_allclose(got[:7], [float(term) for term in printed[:7]], 1e-12)
    assert np.isclose(got.upper_drift, float(printed[7] + printed[9]), rtol=1e-12)
    assert np.isclose(got.lower_drift, float(printed[8] + printed[10]), rtol=1e-12)
    assert np.isclose(got.total, float(sum(printed)), rtol=1e-12)


def test_theorem_2_as_printed():
    rho1, rho2, eta = (
        Fraction(BSGVRM[name]) for name in ("upper_rate", "lower_rate", "learning_rate")
    )
    printed = [
        2 * GAP / (eta * rho1 * T),
        10 * L_TILDE**2 / (rho2 * MU * eta * T) * DISTANCE,
        2 * G_SQUARED / (ALPHA * eta**2 * T * K * B),
        250 * L_TILDE**2 * SIGMA**2 / (3 * BETA * MU**2 * eta**2 * T * K * B),
        8 * ALPHA * eta**2 * G_SQUARED / K,
        1000 * BETA * eta**2 * SIGMA**2 * L_TILDE**2 / (3 * MU**2 * K),
        4 * DELTA**2,
    ]
    last = (rho1**2 + rho2**2) * (
        4
        + 1000 * L_TILDE**2 / (3 * MU**2)
        + 16 * L_HAT_SQUARED / (ALPHA * K)
        + 2000 * L1**2 * L_TILDE**2 / (3 * BETA * MU**2 * K)
    )
    last *= 48 * BETA**2 * P**2 * eta**4 * SIGMA**2 + (
        48 * ALPHA**2 * P**2 * eta**4 * G_SQUARED
    )
    got = evaluate("Theorem 2")
    np.testing.assert_allclose(got[:7], [float(term) for term in printed], 1e-12)
    drift = got.upper_drift + got.lower_drift
    assert np.isclose(drift, float(last), rtol=1e-12)
    shares = ALPHA**2 * G_SQUARED / (BETA**2 * SIGMA**2)
    assert np.isclose(got.upper_drift, float(shares) * got.lower_drift, rtol=1e-12)
    assert np.isclose(got.total, float(sum(printed) + last), rtol=1e-12)


def test_theorem_3_as_printed():
    rho1, rho2 = Fraction(DECAY["upper_rate"]), Fraction(DECAY["lower_rate"])
    l_hat = float(L_HAT_SQUARED) ** 0.5
    factor = Fraction(200 * P, T) + Fraction(1, 4 * 10**6)
    slow = float(factor) * log(T + 1)
    printed = [
        2 * float(GAP) / float(rho1) * (200 * P * l_hat / T + l_hat / (4 * 10**6)),
        float(factor * 20 * L_TILDE**2 / (rho2 * MU) * DISTANCE) * l_hat,
        float(factor * 800 * P * G_SQUARED / B),
        float(factor * 200000 * P * SIGMA**2 * L_TILDE**2 / (3 * MU**2 * B)),
        slow * 32 * float(SIGMA**2),
        slow * float(4000 * SIGMA**2 * L_TILDE**2 / (3 * MU**2)),
        (4 * 200**3 * K**2 * P**3 / T + 4) * float(DELTA**2) * log(T + 1),
    ]
    last = 3 * (rho1**2 + rho2**2) * L_TILDE**2 * (SIGMA**2 + G_SQUARED) / MU**2
    got = evaluate("Theorem 3", as_printed=True)
    np.testing.assert_allclose(got[:7], printed, 1e-12)
    drift = got.upper_drift + got.lower_drift
    assert np.isclose(drift, slow * float(last), rtol=1e-12)
    shares = float(G_SQUARED / SIGMA**2)
    assert np.isclose(got.upper_drift, shares * got.lower_drift, rtol=1e-12)
    assert np.isclose(got.total, sum(printed) + slow * float(last), rtol=1e-12)


FADING = "objective_gap", "lower_start", "upper_opening", "lower_opening"
NOISE = "upper_noise", "lower_noise"
DRIFT = "upper_drift", "lower_drift"


@pytest.mark.parametrize(
    ("theorem", "setting", "powers"),
    [
        ("Theorem 1", "steps", dict.fromkeys(FADING, -1)),
        ("Theorem 1", "devices", dict.fromkeys(NOISE, -1)),
        ("Theorem 2", "steps", dict.fromkeys(FADING, -1)),
        ("Theorem 2", "local_steps", dict.fromkeys(DRIFT, 2)),
        ("Theorem 2", "initial_batch_size", dict.fromkeys(FADING[2:], -1)),
        ("Theorem 3", "initial_batch_size", dict.fromkeys(FADING[2:], -1)),
    ],
)
def test_a_term_follows_its_settings_and_no_other_does(theorem, setting, powers):
    once = evaluate(theorem)
    twice = evaluate(theorem, **{setting: 2 * BOUNDS[theorem][1][setting]})
    for name, before, after in zip(once._fields, once, twice, strict=True):
        assert np.isclose(after, before * 2.0 ** powers.get(name, 0), rtol=1e-12), name


def test_drift_grows_with_the_second_and_fourth_power_of_local_steps():
    drifts = np.array([evaluate("Theorem 1", local_steps=p)[7:] for p in (1, 2, 3)])
    powers = np.array([[p**2, p**4] for p in (1.0, 2.0, 3.0)])
    coefficients = np.linalg.solve(powers[:2], drifts[:2])
    assert np.all(coefficients > 0)
    np.testing.assert_allclose(powers[2] @ coefficients, drifts[2], rtol=1e-9)


def test_theorem_3_speeds_up_with_devices_once_steps_are_many():
    # The term T^(-2/3) K^(-2/3) dominates once 200 p / T is negligible.
    few, many = (evaluate("Theorem 3", steps=10**21, devices=k) for k in (8, 64))
    for name in (*FADING, *NOISE, *DRIFT):
        assert np.isclose(getattr(many, name), getattr(few, name) / 4, rtol=1e-3), name


@pytest.mark.parametrize(
    ("theorem", "rate"),
    [
        (name, rate)
        for name, (_, rates) in BOUNDS.items()
        for rate in rates
        if "rate" in rate
    ],
)
def test_settings_that_a_theorem_does_not_cover_are_refused(theorem, rate):
    with pytest.raises(ValueError, match=f"{rate} is 1, but {theorem} requires"):
        evaluate(theorem, **{rate: 1.0})


@pytest.mark.parametrize("theorem", BOUNDS)
@pytest.mark.parametrize("count", ["devices", "steps", "local_steps"])
def test_counts_below_one_are_refused(theorem, count):
    with pytest.raises(ValueError, match=f"{count} is 0, expected at least 1"):
        evaluate(theorem, **{count: 0})


def test_ceilings_at_chosen_rates_follow_them():
    settings: dict[str, Any] = {**MIXING, "local_steps": P}
    at_most = theory.local_bsgm_ceilings(ASSUMPTIONS, SERIES, **settings)
    lower = at_most.lower_rate / 10
    got = theory.local_bsgm_ceilings(ASSUMPTIONS, SERIES, **settings, lower_rate=lower)
    assert got.lower_rate == at_most.lower_rate
    assert got.upper_rate < at_most.upper_rate
    again = theory.local_bsgm_ceilings(
        ASSUMPTIONS, SERIES, **settings, lower_rate=lower, upper_rate=got.upper_rate
    )
    assert again == got
