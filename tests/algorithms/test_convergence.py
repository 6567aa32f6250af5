from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    WarmStart,
    run,
)
from tests import quadratic
from tests.algorithms.table import at_night

pytestmark = pytest.mark.slow

START = np.zeros(quadratic.X_SIZE), np.zeros(quadratic.Y_SIZE)


@pytest.mark.parametrize("make", [LocalBSGM, *at_night(LocalBSGVRM)])
def test_both_reach_the_solution_of_a_homogeneous_quadratic(make):
    held = quadratic.devices(1, 1, 0.0)[0]
    devices = InMemoryDevices.sharing(held, device_count=4)
    algorithm = make(
        learning_rate=0.1,
        # H has eigenvalues from 1.0 to 2.8: a remainder of 0.49²⁰ = 6 · 10⁻⁷.
        hypergradient=NeumannSeries(terms=20, scale=0.5),
        upper_mixing=5.0,
        lower_mixing=5.0,
        local_steps=5,
    )
    *_, last = run(quadratic.problem(), algorithm, devices, *START, rounds=400)
    mean = quadratic.Mean.of([held])
    solution = mean.solution()
    np.testing.assert_allclose(last.x, solution, rtol=0, atol=1e-6)
    np.testing.assert_allclose(last.y, mean.lower_solution(solution), rtol=0, atol=1e-6)


def tail_error(algorithm, devices, mean, rounds, seed) -> float:
    """Return the mean of ‖∇Φ‖² over the last third of a run."""
    errors = [
        np.sum(mean.hypergradient(np.asarray(result.x)) ** 2)
        for result in run(
            quadratic.problem(), algorithm, devices, *START, rounds=rounds, seed=seed
        )
    ]
    return float(np.mean(errors[-rounds // 3 :]))


@pytest.mark.nightly
def test_variance_reduction_lowers_the_tail_error_at_equal_samples():
    # All parts of the examples have noise: targets, matrices and couplings too.
    held = quadratic.examples(np.random.default_rng(8), 500, 0.3)
    devices = InMemoryDevices.sharing(held, device_count=4)
    mean = quadratic.Mean.of([held])
    settings: dict[str, Any] = {
        "learning_rate": 0.1,
        "hypergradient": NeumannSeries(terms=20, scale=0.15),
        "local_steps": 5,
    }
    # Both draw the same number of examples per step and have the same step lengths.
    momentum = LocalBSGM(**settings, upper_mixing=5.0, lower_mixing=5.0)
    reduced = LocalBSGVRM(**settings, upper_mixing=1.0, lower_mixing=1.0)
    for seed in range(3):
        errors = [
            tail_error(algorithm, devices, mean, rounds=300, seed=seed)
            for algorithm in (momentum, reduced)
        ]
        assert errors[1] < 0.5 * errors[0]


def test_warm_start_brings_y_to_the_lower_solution_at_the_first_x():
    held = quadratic.devices(1, 1, 0.0)[0]
    devices = InMemoryDevices.sharing(held, device_count=3)
    x = np.full(quadratic.X_SIZE, 2.0)
    warm = WarmStart(learning_rate=0.2, exchanges=20, local_steps=10)
    # The rate is so small that the round itself hardly moves x and y.
    algorithm = LocalBSGVRM(1e-12, NeumannSeries(1, 0.1), warm_start=warm)
    (only,) = run(quadratic.problem(), algorithm, devices, x, START[1], rounds=1)
    expected = quadratic.Mean.of([held]).lower_solution(x)
    np.testing.assert_allclose(only.y, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(only.x, x, rtol=0, atol=1e-8)
    assert only.costs.exchanges == 21


@pytest.mark.nightly
def test_a_grid_of_rates_runs_under_one_vmap():
    held = quadratic.devices(1, 1, 0.0)[0]
    devices = InMemoryDevices.sharing(held, device_count=2)

    def final_x(rate):
        algorithm = LocalBSGM(rate, NeumannSeries(2, 0.1), local_steps=2)
        *_, last = run(quadratic.problem(), algorithm, devices, *START, rounds=2)
        return last.x

    grid = jnp.array([0.05, 0.1])
    together = jax.vmap(final_x)(grid)
    apart = jnp.stack([final_x(float(rate)) for rate in grid])
    np.testing.assert_allclose(together, apart, rtol=0, atol=1e-12)
