"""Tests of the counts of steps and samples in the experiments on theory."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import complexity, noisy_quadratic, one_noise, passage, speedup
from benchmarks.noisy_quadratic import Noise
from fedbilevel import (
    BilevelProblem,
    DebugSimulation,
    FedBiOAcc,
    LocalBSGM,
    LocalBSGVRM,
    run,
)
from fedbilevel.algorithms.momentum import MomentumState
from fedbilevel.engines.costs import Costs
from fedbilevel.metrics import stationarity
from fedbilevel.theory import LOCAL_BSGM_LAW, LOCAL_BSGVRM_LAW
from tests.algorithms.table import by_day

pytestmark = pytest.mark.slow


def exact_stationarity(x, y):
    # L̃ = L_1 + L_1² / μ, with L_1 the largest singular value of ∇²g.
    exact = noisy_quadratic.quadratic()
    below = np.hstack([-exact.couplings[0], exact.matrices[0]])
    above = np.hstack([np.zeros((5, 5)), -exact.couplings[0].T])
    lipschitz = np.abs(np.linalg.eigvalsh(np.vstack([above, below]))).max()
    return stationarity(exact.reference(), x, y).total(lipschitz + lipschitz**2)


def test_first_steps_are_those_of_a_running_average():
    generator = np.random.default_rng(0)
    after_rounds = 10 * np.exp(-np.arange(40) / 5) + generator.uniform(size=(2, 3, 40))
    got = passage.first_steps(2.5, 12.0, after_rounds, local_steps=3)
    for run_number in np.ndindex(2, 3):
        total, values = 0.0, [12.0, *after_rounds[run_number][:-1]]
        for rounds, current in enumerate(values, start=1):
            total += current
            if total / rounds <= 2.5:
                break
        assert 3 < got[run_number] == 3 * rounds < 3 * 40


def test_runs_that_diverge_or_stay_above_take_forever():
    after_rounds = np.array([[9.0, 9.0, 9.0], [9.0, np.nan, 0.0], [9.0, np.inf, 0.0]])
    got = passage.first_steps(5.0, 9.0, after_rounds, local_steps=2)
    np.testing.assert_array_equal(got, np.inf)


def test_the_rate_is_chosen_and_reported_with_different_seeds():
    steps = np.array([[1.0, 9.0, 9.0, 5.0], [4.0, 4.0, 4.0, 6.0], [np.inf] * 3 + [1.0]])
    tuned = passage.tune(passage.Passages(steps, ()), tuning_seeds=3)
    assert tuned == passage.Tuned(best=1, median=4.0, steps=[6.0], inside=True)
    assert not passage.tune(passage.Passages(steps[1:], ()), tuning_seeds=3).inside


def test_stationarity_is_the_papers():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, 5))
    got = noisy_quadratic.stationarity()(
        MomentumState(jnp.asarray(x), jnp.asarray(y), 0.0, 0.0, 0)
    )
    np.testing.assert_allclose(got, exact_stationarity(x, y), rtol=1e-10)
    start = noisy_quadratic.start()
    np.testing.assert_allclose(
        start.stationarity, exact_stationarity(start.x, start.y), rtol=1e-10
    )


def test_the_series_scale_is_below_every_examples_inverse_curvature():
    lower = noisy_quadratic.task(1, Noise(1.0)).devices.cohort(np.arange(1)).lower
    largest = np.linalg.eigvalsh(np.asarray(lower.arrays.matrix)).max()
    assert 1 / largest > noisy_quadratic.SERIES_SCALE


@pytest.mark.nightly
@pytest.mark.parametrize("name", by_day(speedup.METHODS, "LocalBSGM"))
def test_passages_are_those_of_single_runs(name):
    plans = [
        speedup.plan_from(speedup.METHODS[name], devices=2, rate=rate, threshold=100.0)
        for rate in (0.05, 0.1)
    ]
    passages = passage.passages(plans, noise=Noise(0.5), steps=200, seeds=[3, 4])
    task, start = noisy_quadratic.task(2, Noise(0.5)), noisy_quadratic.start()
    total, current = 0.0, start.stationarity
    for r in run(
        task.problem,
        passage.algorithm_of(plans[1]),
        task.devices,
        start.x,
        start.y,
        rounds=25,
        seed=4,
    ):
        total += current
        if total / (r.number + 1) <= 100.0:
            break
        current = exact_stationarity(np.asarray(r.x), np.asarray(r.y))
    assert 8 < passages.steps[1, 1] == 8 * (r.number + 1) < 200
    assert passages.costs[r.number] == r.costs


def test_settings_follow_the_number_of_devices():
    methods = speedup.METHODS
    one, four = (
        [
            passage.algorithm_of(speedup.plan_from(method, k, rate=0.1, threshold=4.0))
            for method in methods.values()
        ]
        for k in (1, 4)
    )
    assert isinstance(one[0], LocalBSGM)
    assert one[0] == four[0]
    assert isinstance(one[1], LocalBSGVRM)
    assert isinstance(four[1], LocalBSGVRM)
    assert four[1].upper_mixing == one[1].upper_mixing / 4
    assert four[1].lower_mixing == one[1].lower_mixing / 4
    assert four[1].initial_batch_size == one[1].initial_batch_size / 4


def test_a_rate_is_admissible_if_a_fresh_sample_weighs_at_most_one():
    rates = [0.5, 0.25, 0.125]
    assert passage.admissible(LOCAL_BSGM_LAW, 4.0, rates) == [0.25, 0.125]
    assert passage.admissible(LOCAL_BSGVRM_LAW, 4.0, rates) == rates
    assert passage.admissible(LOCAL_BSGVRM_LAW, 16.0, rates) == [0.25, 0.125]


def test_local_steps_stand_for_accuracies_over_a_decade():
    setting = complexity.FULL
    accuracies = [setting.accuracy(p) for p in setting.local_steps]
    assert accuracies[0] / accuracies[-1] >= 10
    assert setting.accuracy(2 * setting.local_steps[0]) == complexity.LARGEST / 4


def test_costs_are_those_of_the_round_that_reaches_the_accuracy():
    costs = tuple(Costs(upper_samples=10 * n) for n in (1, 2, 3))
    passages = passage.Passages(np.zeros((1, 2)), costs)
    assert complexity.costs_of(passages, [8.0, np.inf], local_steps=4) == {
        "steps": [8.0, np.inf],
        "samples": [20, np.inf],
        "rounds": [2.0, np.inf],
    }


def test_a_weight_is_that_of_a_fresh_sample():
    first, second, third = (
        one_noise.algorithm_of(name, rate=0.5, weight=0.125)
        for name in ("LocalBSGM", "LocalBSGVRM", "FedBiOAcc")
    )
    assert isinstance(first, LocalBSGM)
    assert first.upper_mixing * 0.5 == first.lower_mixing * 0.5 == 0.125
    assert isinstance(second, LocalBSGVRM)
    assert isinstance(third, FedBiOAcc)
    mixings = second.upper_mixing, second.lower_mixing, third.adjoint_mixing
    assert [mixing * 0.5**2 for mixing in mixings] == [0.125] * 3


@pytest.mark.nightly
@pytest.mark.parametrize("name", one_noise.ALGORITHMS)
def test_evaluations_are_those_that_oracles_make(name):
    task, start = noisy_quadratic.task(1, Noise(0.5)), noisy_quadratic.start()
    batch_sizes = []

    def counting(oracle):
        def count(x, y, batch, *vector):
            if not isinstance(x, jax.core.Tracer):  # costs are predicted with tracers
                batch_sizes.append(len(batch[0]))
            return oracle(x, y, batch, *vector)

        return count

    plain = task.problem
    problem = BilevelProblem(
        plain.upper_loss,
        plain.lower_loss,
        upper_gradients=counting(plain.upper_gradients),
        lower_gradient=counting(plain.lower_gradient),
        hessian_product=counting(plain.hessian_product),
        cross_product=counting(plain.cross_product),
    )
    algorithm: Any = one_noise.algorithm_of(name, rate=0.1, weight=0.5)
    *_, last = run(
        problem,
        replace(algorithm, local_steps=2),
        task.devices,
        start.x,
        start.y,
        rounds=1,
        engine=DebugSimulation(),
    )
    samples = last.costs.samples
    evaluations = one_noise.evaluations(name, 1, samples)
    assert sum(batch_sizes) == evaluations
    assert (evaluations > samples) == (name in one_noise.PAIRS)


def test_a_setting_is_chosen_by_the_mean_that_is_reported(monkeypatch):
    grid = one_noise.Grid((1.0, 0.5, 0.25), (1.0,), tuning_seeds=2, seeds=3)
    tuning = np.array([[[8.0, np.inf], [16.0, 16.0], [8.0, 24.0]]])
    calls = []

    def arrivals(name, settings, *, seeds, steps, **others):
        calls.append((list(settings), list(seeds), steps))
        costs = tuple(Costs(upper_samples=10 * n) for n in (1, 2, 3))
        return (tuning if len(calls) == 1 else np.array([[[8.0, 16.0, 24.0]]])), costs

    monkeypatch.setattr(one_noise, "arrivals", arrivals)
    shared: dict[str, Any] = {"devices": 1, "noise": Noise(1.0), "steps": 1000}
    (result,) = one_noise.race(grid, "FedBiO", accuracies=[4.0], **shared)
    assert calls[1] == ([(0.25, 1.0)], [2, 3, 4], 8 * 13)  # √(8 · 24) = 13.9
    assert result["samples"] == result["evaluations"] == [10, 20, 30]
    assert not result["inside"]  # the smallest rate
    calls.clear()
    tuning[..., 1] = np.inf
    with pytest.raises(ValueError, match="allow more steps"):
        one_noise.race(grid, "FedBiO", accuracies=[4.0], **shared)


@pytest.mark.nightly  # by day, passages above
def test_one_race_serves_all_accuracies_with_the_numbers_of_single_runs():
    settings = [(0.25, 0.25), (0.125, 0.25)]
    taken, costs = one_noise.arrivals(
        "FedBiOAcc",
        settings,
        devices=2,
        noise=Noise(0.5),
        accuracies=[150.0, 60.0],
        steps=160,
        seeds=[3, 4],
    )
    task, start = noisy_quadratic.task(2, Noise(0.5)), noisy_quadratic.start()
    total, current = 0.0, start.stationarity
    first: dict[float, int] = {}
    algorithm = one_noise.algorithm_of("FedBiOAcc", *settings[1])
    for r in run(
        task.problem, algorithm, task.devices, start.x, start.y, rounds=20, seed=4
    ):
        total += current
        for accuracy in (150.0, 60.0):
            if total / (r.number + 1) <= accuracy:
                first.setdefault(accuracy, 8 * (r.number + 1))
        current = exact_stationarity(np.asarray(r.x), np.asarray(r.y))
    assert taken[:, 1, 1].tolist() == [first[150.0], first[60.0]]
    assert 8 < first[150.0] < first[60.0] < 160
    assert costs[19] == r.costs
