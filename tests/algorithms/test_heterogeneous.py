"""The limit of each method on heterogeneous devices, with deterministic oracles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    ConjugateGradient,
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    FedNest,
    InMemoryDevices,
    LFedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    Run,
    ShroFBO,
    SimFBO,
    UniformSample,
    run,
    sweep,
)
from tests import quadratic
from tests.algorithms.table import at_night, by_day
from tests.quadratic import Mean

pytestmark = pytest.mark.slow


START = np.zeros(quadratic.X_SIZE), np.zeros(quadratic.Y_SIZE)
SERIES = NeumannSeries(terms=40, scale=0.2)


def heterogeneous(sizes=(1, 1, 1, 1)):
    """Return devices with one quadratic each, repeated to these sizes."""
    generator = np.random.default_rng(5)
    apart = [quadratic.examples(generator, 1, 0.8) for _ in sizes]
    return [
        jax.tree.map(lambda leaf, n=n: np.repeat(leaf, n, axis=0), device)
        for device, n in zip(apart, sizes, strict=True)
    ]


HELD = heterogeneous()
MEAN = Mean.of(HELD)


def trajectory(algorithms, rounds, held=HELD, seed=0, **settings):
    """Return (x, y) of every setting after every round."""
    inputs = quadratic.problem(), algorithms[0], InMemoryDevices(held), *START
    result = sweep(
        Run(*inputs, rounds=rounds, **settings),
        algorithms,
        seeds=[seed],
        measure=lambda server: (server.x, server.y),
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], result.measurements)


def settled(algorithm, rounds, held=HELD, **settings):
    x, y = trajectory([algorithm], rounds, held, **settings)
    return x[0, -1], y[0, -1]


def zero_of_local_hypergradients(fixed_lower: bool) -> np.ndarray:
    """Return the x at which the mean of the local hypergradients vanishes.

    With `fixed_lower`, they are evaluated at the global y*(x), otherwise at the local
    y_k*(x). The mean is affine in x, so two evaluations per coordinate determine it.
    """
    local = [Mean.of([device]) for device in HELD]

    def mean(x):
        y = MEAN.lower_solution(x) if fixed_lower else None
        return np.mean([device.hypergradient(x, y) for device in local], axis=0)

    constant = mean(START[0])
    slope = np.stack([mean(row) - constant for row in np.eye(quadratic.X_SIZE)], axis=1)
    return np.asarray(np.linalg.solve(slope, -constant))


CORRECT: dict[str, FederatedAlgorithm] = {
    # Its corrections vanish at the solution, so several local steps cause no bias.
    "FedNest": FedNest(
        0.2, SERIES, lower_rounds=2, lower_steps=2, local_steps=2, batch_size=1
    ),
    "FedBiO": FedBiO(0.1),
    "FedBiOAcc": FedBiOAcc(0.1, 1.0, 1.0, 1.0, 20.0, 20.0, 20.0),
    "SimFBO": SimFBO(0.1, server_rate=1.5),
    "ShroFBO": ShroFBO(0.1, server_rate=1.5),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", by_day(CORRECT, "FedBiO", "SimFBO"))
def test_one_local_step_reaches_the_true_solution(name):
    x, y = settled(CORRECT[name], rounds=300 if name == "FedNest" else 600)
    np.testing.assert_allclose(x, MEAN.solution(), rtol=0, atol=1e-6)
    lower = MEAN.lower_solution(MEAN.solution())
    np.testing.assert_allclose(y, lower, rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_the_drawn_number_of_products_has_the_expectation_of_the_series():
    # The number of steps seeds the draw, and the rates are too small to move x or y, so
    # all rounds draw at the same point.
    series = NeumannSeries(terms=4, scale=0.1)

    def hypergradients(rounds, **settings):
        still = FedNest(1e-12, series, **settings)
        what = quadratic.problem(), still, InMemoryDevices(HELD)
        return sweep(
            Run(*what, *START, rounds=rounds),
            [still],
            seeds=[0],
            measure=lambda server: server.hypergradient,
        ).measurements[0, 0]

    drawn = hypergradients(1000, random_truncation=True)
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (error > 1e-4).all()
    difference = drawn.mean(axis=0) - hypergradients(1)[0]
    assert (np.abs(difference) < 4 * error).all()


DRIFTING: dict[str, Any] = {
    "FedBiO": FedBiO,
    "FedBiOAcc": lambda rate, **rest: FedBiOAcc(
        rate,
        upper_mixing=0.2 / rate**2,
        lower_mixing=0.2 / rate**2,
        adjoint_mixing=0.2 / rate**2,
        **rest,
    ),
    "SimFBO": SimFBO,
    "ShroFBO": ShroFBO,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", by_day(DRIFTING, "FedBiO"))
def test_the_drift_of_several_local_steps_shrinks_with_the_rate(name):
    rates = (0.04, 0.02, 0.01)
    algorithms = [DRIFTING[name](rate, local_steps=5) for rate in rates]
    x, _ = trajectory(algorithms, rounds=3000)
    errors = np.linalg.norm(x[:, -1] - MEAN.solution(), axis=-1)
    moved = np.linalg.norm(x[:, -1] - x[:, -500], axis=-1)
    assert (moved < 1e-3 * errors).all()  # they have converged
    assert errors[0] > 1e-3  # there is a drift
    assert errors[1] < 0.65 * errors[0]
    assert errors[2] < 0.65 * errors[1]


@pytest.mark.nightly
def test_the_drift_vanishes_with_decaying_rates():
    def rate(step):
        return 0.05 / (1 + jnp.asarray(step, float) / 500)

    x, _ = trajectory([FedBiO(rate, local_steps=5)], rounds=20_000)
    errors = np.linalg.norm(x[0] - MEAN.solution(), axis=-1)
    assert errors[-1] < 0.2 * errors[2_000] < 0.2 * 0.1


EXACT = ConjugateGradient(tolerance=1e-13)
BIASED: dict[str, FederatedAlgorithm] = {
    "LocalBSGM": LocalBSGM(0.1, EXACT, upper_mixing=5.0, lower_mixing=5.0),
    "LocalBSGVRM": LocalBSGVRM(0.1, EXACT, upper_mixing=20.0, lower_mixing=20.0),
    "LFedNest": LFedNest(0.1, EXACT, lower_rounds=2),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", by_day(BIASED, "LocalBSGM"))
def test_methods_of_own_hypergradients_settle_at_the_predicted_biased_point(name):
    predicted = zero_of_local_hypergradients(fixed_lower=True)
    assert np.linalg.norm(predicted - MEAN.solution()) > 0.5
    x, _ = settled(BIASED[name], rounds=500)
    np.testing.assert_allclose(x, predicted, rtol=0, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "algorithm",
    [
        FedBiO(0.1, private_lower=True),
        *at_night(FedBiOAcc(0.1, 1.0, 1.0, 1.0, 20.0, 20.0, 20.0, private_lower=True)),
    ],
)
def test_private_lower_levels_solve_their_own_problem(algorithm):
    devices = InMemoryDevices(HELD)
    *_, last = run(quadratic.problem(), algorithm, devices, *START, rounds=600)
    predicted = zero_of_local_hypergradients(fixed_lower=False)
    assert np.linalg.norm(predicted - MEAN.solution()) > 0.1
    np.testing.assert_allclose(last.x, predicted, rtol=0, atol=1e-6)
    lowers = jax.tree.leaves(last.private)[0]
    for device, y in zip(HELD, lowers, strict=True):
        local = Mean.of([device]).lower_solution(last.x)
        np.testing.assert_allclose(y, local, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(last.y, START[1])


@pytest.mark.nightly
def test_a_device_with_a_private_lower_level_may_join_late():
    def late(seed, round_number, device_count):
        return np.arange(device_count if round_number >= 3 else 2)

    algorithm = FedBiOAcc(0.1, 1.0, 1.0, 1.0, 20.0, 20.0, 20.0, private_lower=True)
    x, _ = settled(algorithm, rounds=600, participation=late)
    predicted = zero_of_local_hypergradients(fixed_lower=False)
    np.testing.assert_allclose(x, predicted, rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_unequal_local_work_biases_simfbo_and_not_shrofbo():
    sizes = (1, 2, 4, 8)
    held = heterogeneous(sizes)
    work: dict[str, Any] = {"local_steps": 8, "examples_per_step": 1}
    truth = Mean.of(held).solution()
    # SimFBO weighs device i by its number of steps.
    weighted = Mean.of(
        [device for device, n in zip(held, sizes, strict=True) for _ in range(n)]
    ).solution()
    assert np.linalg.norm(weighted - truth) > 0.2

    def errors(make, solution):
        algorithms = [make(rate, **work) for rate in (0.02, 0.01)]
        x, _ = trajectory(algorithms, 1500, held)
        return np.linalg.norm(x[:, -1] - solution, axis=-1)

    for make, solution in ((SimFBO, weighted), (ShroFBO, truth)):
        drift = errors(make, solution)
        assert drift[1] < 0.65 * drift[0]
        assert drift[1] < 0.1
    assert errors(SimFBO, truth)[1] > 0.2


@pytest.mark.nightly
def test_simfbo_with_a_server_rate_of_one_is_fedbio():
    devices = InMemoryDevices(quadratic.devices(4, per_device=6, noise=0.3))
    rates = 0.05, 0.3, 0.5, 0.4
    ends = [
        list(run(quadratic.problem(), algorithm, devices, *START, rounds=4))[-1]
        for algorithm in (FedBiO(*rates, local_steps=3), SimFBO(*rates, local_steps=3))
    ]
    for value, other in zip(ends[0].server[:3], ends[1].server[:3], strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-12)


def decaying(step):
    return 0.1 / (1 + jnp.asarray(step, float) / 100.0)


@pytest.mark.parametrize("make", [FedBiO, *at_night(SimFBO, ShroFBO)])
def test_partial_participation_reaches_the_true_solution(make):
    sample = UniformSample(2)
    x, _ = trajectory([make(decaying)], 10_000, participation=sample, seed=1)
    errors = np.linalg.norm(x[0] - MEAN.solution(), axis=-1)
    assert errors[-1] < 0.3 * errors[200]
    assert errors[-1] < 0.05


@pytest.mark.nightly
def test_partial_participation_biases_fednest():
    algorithm = FedNest(decaying, SERIES, upper_rate=2.0, lower_rate=2.0)
    x, _ = trajectory([algorithm], 2_000, participation=UniformSample(1), seed=1)
    late = x[0, -500:].mean(axis=0)
    predicted = zero_of_local_hypergradients(fixed_lower=True)
    # With one device per round, the inverse is that of the device's local Hessian.
    assert np.linalg.norm(late - MEAN.solution()) > 0.5
    assert np.linalg.norm(late - predicted) < 0.5
