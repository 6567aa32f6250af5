"""The bounds against long-run values in closed form, with noise in f only.

f = ½x² + ξx with ξ = ±1 and g = ½y², so σ = 0, y stays at y* = 0 and ∇Φ(x) = x. Both
algorithms are then linear in (x, u) with additive noise. The mean over K devices obeys
the recursion of one device with a K-th of the variance, for any p.

f is as Lipschitz as the theorems require if it continues with a slope of 3/2 from
|x| = ½ on. No run below reaches this |x|: its |x| is of the order of 10⁻⁷.
"""

from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from fedbilevel import (
    BilevelProblem,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    LocalExamples,
    NeumannSeries,
    Run,
    sweep,
    theory,
)
from fedbilevel.theory import Assumptions, Start
from tests.algorithms.table import at_night

ASSUMPTIONS = Assumptions(
    strong_convexity=1.0, upper_lipschitz=1.5, gradient_lipschitz=1.0, deviation=0.0
)
SERIES = NeumannSeries(9, 0.99)  # its bias of 10⁻²⁰ is negligible
AT_SOLUTION = Start(objective_gap=0.0, lower_error=0.0)
FOREVER = 10**90


def long_run(weight: float, step: float, devices: int, *, reduced: bool) -> float:
    """Return the limit of E x² of an infinite run.

    x' = x − r u, and u' = (1 − a) u + a (x' + ξ) in Algorithm 1 or, since the noise of
    the two evaluations cancels, u' = (1 − a)(u − x) + x' + a ξ in Algorithm 2. The
    stationary second moments solve three linear equations. They are solved in
    fractions, because a and r are too small for double precision.

    Args:
        weight: a = αη, or αη² in Algorithm 2.
        step: r = ρ_1 η.
        devices: K.
        reduced: True for Algorithm 2.
    """
    a, r = Fraction(weight), Fraction(step)
    of_u, of_x = (1 - a - r, a) if reduced else (1 - a - a * r, a)
    # E x² = E x'² gives E xu = r/2 E u²; E xu = E x'u' then gives E x² by E u².
    by_u = (r / 2 * (1 - of_u + r * of_x) + r * of_u) / of_x
    left = 1 - of_u**2 - of_x**2 * by_u - of_x * of_u * r
    return float(by_u * a**2 / devices / left)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [2, *at_night(1)])
def test_the_closed_form_is_that_of_the_algorithm(number):
    eta, rho, alpha, devices = 0.5, 0.4, 0.8, 2
    problem = BilevelProblem(
        upper_loss=lambda x, y, xi: 0.5 * x**2 + jnp.mean(xi) * x,
        lower_loss=lambda x, y, batch: 0.5 * jnp.mean(batch) * y**2,
    )
    noise = LocalExamples(np.array([-1.0, 1.0]), np.ones(1))
    rates = eta, NeumannSeries(1, 0.5), rho, rho, alpha, alpha
    algorithm = (LocalBSGM if number == 1 else LocalBSGVRM)(*rates, local_steps=20)
    shared = InMemoryDevices.sharing(noise, devices)
    result = sweep(
        Run(problem, algorithm, shared, 0.0, 0.0, rounds=150),
        [algorithm],
        seeds=range(80),
        measure=lambda server: server.x**2,
    )
    means = np.asarray(result.measurements)[0, :, 5:].mean(axis=1)
    error = means.std(ddof=1) / np.sqrt(len(means))
    exact = long_run(alpha * eta**number, rho * eta, devices, reduced=number == 2)
    assert error < 0.02 * exact
    assert abs(means.mean() - exact) < 4 * error


def settings(number: int, mixing: float, slowness: float, devices: int, p: int):
    """Return settings that the theorem covers, with η at its ceiling / `slowness`."""
    shared: dict[str, Any] = {
        "upper_mixing": mixing,
        "lower_mixing": mixing,
        "local_steps": p,
    }
    ceilings = (
        theory.local_bsgm_ceilings(ASSUMPTIONS, SERIES, **shared)
        if number == 1
        else theory.local_bsgvrm_ceilings(
            ASSUMPTIONS, SERIES, **shared, devices=devices
        )
    )
    shared |= ceilings._asdict()
    shared["learning_rate"] /= slowness
    return {**shared, "devices": devices, "steps": FOREVER}


def compare(number: int, **chosen) -> tuple[float, dict[str, Any]]:
    """Return the long-run stationarity of Algorithm 1 or 2, and the settings."""
    options = settings(number, **chosen)
    eta = options["learning_rate"]
    weight = options["upper_mixing"] * eta**number
    step = options["upper_rate"] * eta
    return long_run(weight, step, options["devices"], reduced=number == 2), options


def test_printed_theorem_1_is_no_bound_and_the_corrected_one_is():
    true, options = compare(1, mixing=1.0, slowness=1e10, devices=4, p=2)
    printed, corrected = (
        theory.local_bsgm_bound(
            ASSUMPTIONS, SERIES, AT_SOLUTION, **options, as_printed=as_printed
        )
        for as_printed in (True, False)
    )
    assert f"{printed.total:.1e} < {true:.1e}" == "8.9e-17 < 8.0e-16"
    assert true < corrected.total
    # The two differ in one term.
    assert printed._replace(upper_noise=corrected.upper_noise) == corrected
    assert printed.upper_noise == 0


@pytest.mark.parametrize("mixing", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("slowness", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("devices", [1, 16])
@pytest.mark.parametrize("p", [2, 50])
def test_corrected_theorem_1_lies_above_the_long_run(mixing, slowness, devices, p):
    true, options = compare(1, mixing=mixing, slowness=slowness, devices=devices, p=p)
    assert (
        true
        < theory.local_bsgm_bound(ASSUMPTIONS, SERIES, AT_SOLUTION, **options).total
    )


@pytest.mark.parametrize("mixing", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("slowness", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("p", [2, 50])
def test_theorem_2_has_the_right_term_and_lies_above_the_long_run(mixing, slowness, p):
    true, options = compare(2, mixing=mixing, slowness=slowness, devices=16, p=p)
    bound = theory.local_bsgvrm_bound(
        ASSUMPTIONS, SERIES, AT_SOLUTION, **options, initial_batch_size=1
    )
    assert true < bound.total
    # At this rate, a bound with σ² instead of G² would be below the exact value.
    if slowness == 1e8:
        assert bound.total - bound.upper_noise < true


@pytest.mark.nightly
def test_printed_theorem_3_is_no_bound_and_the_corrected_one_is():
    # E x² of Algorithm 2 with steps so small that moments follow differential
    # equations: e = u − x has de = −a e + a ξ, and dx = −r (x + e).
    p, devices, steps = 2, 1, 1e24
    rho2 = 1e-4
    series = NeumannSeries(6, 0.99)
    decay = theory.local_bsgvrm_decay(
        ASSUMPTIONS, series, local_steps=p, devices=devices, lower_rate=rho2
    )
    scale = float(decay.learning_rate.scale)
    plateau = float(decay.learning_rate.plateau)
    rho1 = decay.upper_rate

    def rates(log_time):
        eta = scale / max(np.exp(log_time), plateau) ** (1 / 3)
        return decay.mixing * eta**2, rho1 * eta

    def matrix(log_time, _):
        # Of E x², E xe, E e² and the sum of E x² over time, by log t.
        a, r = rates(log_time)
        rows = [-2 * r, -2 * r, 0, 0], [0, -r - a, -r, 0], [0, 0, -2 * a, 0]
        return np.exp(log_time) * np.array([*rows, [1, 0, 0, 0]])

    def change(log_time, moments):
        a, _ = rates(log_time)
        noise = np.exp(log_time) * np.array([0, 0, a**2 / devices, 0])
        return matrix(log_time, moments) @ moments + noise

    result = solve_ivp(
        change,
        (0.0, np.log(steps)),
        np.zeros(4),
        "Radau",
        jac=matrix,
        rtol=1e-8,
        atol=1e-60,
    )
    true = result.y[3, -1] / steps
    printed, corrected = (
        theory.local_bsgvrm_decay_bound(
            ASSUMPTIONS,
            series,
            AT_SOLUTION,
            upper_rate=rho1,
            lower_rate=rho2,
            local_steps=p,
            devices=devices,
            steps=int(steps),
            initial_batch_size=10**9,
            as_printed=as_printed,
        ).total
        for as_printed in (True, False)
    )
    assert f"{printed:.1e} < {true:.1e}" == "1.1e-18 < 1.2e-16"
    assert true < corrected
