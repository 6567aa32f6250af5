"""Server optimisers for x, with any algorithm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedbilevel import (
    AutoFedBiO,
    BilevelProblem,
    CheckpointError,
    Checkpoints,
    FedBiO,
    FedBiOAcc,
    InMemoryDevices,
    LocalBSGVRM,
    LocalExamples,
    NeumannSeries,
    Run,
    optax_optimiser,
    run,
    sweep,
    with_server_optimiser,
)
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, at_night, in_tiers
from tests.engines import federation

pytestmark = pytest.mark.slow

ADAM = optax_optimiser("adam", learning_rate=0.05, b2=0.99)


def ends(algorithm: Any, rounds: int = 3, **others: Any) -> Any:
    *_, last = run(
        quadratic.problem(),
        algorithm,
        federation.in_memory(),
        *federation.START,
        rounds=rounds,
        **{"weights": federation.WEIGHTS, **others},
    )
    return last


@pytest.mark.nightly
@in_tiers(quick=(), check=KINDS[1:])
def test_gradient_descent_at_rate_1_is_the_algorithm_as_it_is(name):
    if name == "AutoFedBiO":
        pytest.skip("it already has a server optimiser")
    plain = ends(ALGORITHMS[name]())
    for optimiser in (optax.sgd(1.0), optax_optimiser("sgd", learning_rate=1.0)):
        wrapped = ends(with_server_optimiser(ALGORITHMS[name](), optimiser))
        inner, costs = wrapped.server.inner, wrapped.costs
        if getattr(inner, "origin", None) is not None:
            # The downlink has one more x, which equals the expected x.
            np.testing.assert_array_equal(inner.origin, inner.x)
            inner = inner._replace(origin=None)
            assert costs.bytes_down > plain.costs.bytes_down
            costs = costs._replace(bytes_down=plain.costs.bytes_down)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12),
            (inner, wrapped.private),
            (plain.server, plain.private),
        )
        assert costs == plain.costs


def halves(upper: float) -> tuple[BilevelProblem, InMemoryDevices]:
    """Return Φ(x) = (x − 1)² on two devices with one example each."""
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - upper * batch) ** 2),
        lower_loss=lambda x, y, batch: jnp.mean(0.5 * (y - x * batch) ** 2),
    )
    return problem, InMemoryDevices.sharing(LocalExamples(np.ones(1), np.ones(1)), 2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "algorithm",
    [
        LocalBSGVRM(0.1, NeumannSeries(4, 0.9), upper_rate=1e-3, local_steps=3),
        *at_night(FedBiOAcc(0.1, upper_rate=1e-3, local_steps=3)),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_variance_reduction_knows_of_the_servers_steps(algorithm):
    # Without noise its estimates are exact at every point, for any step of Adam.
    problem, devices = halves(1.0)
    wrapped = with_server_optimiser(algorithm, optax.adam(0.05))
    for last in run(problem, wrapped, devices, 3.0, 3.0, rounds=300):
        inner = last.server.inner
        estimate = getattr(inner, "lower_direction", None)
        estimate = inner.directions.y if estimate is None else estimate
        assert float(estimate) == pytest.approx(float(inner.y - inner.origin), abs=1e-9)
    assert float(last.x) == pytest.approx(1.0, abs=0.02)


def test_an_algorithm_with_an_optimiser_of_its_own_is_refused():
    with pytest.raises(ValueError, match="AutoFedBiO already has a server optimiser"):
        with_server_optimiser(AutoFedBiO(rounds=9), optax.adam(0.01))


def test_the_steps_are_those_of_adam_written_by_hand():
    # Kingma and Ba, arXiv 1412.6980, algorithm 1, with the step of FedBiO on x as the
    # gradient. One device with one example makes the run deterministic.
    held = quadratic.examples(np.random.default_rng(3), 1, 0.3)
    (target, shift), (matrix, coupling, offset) = (
        [array[0] for array in part] for part in (held.upper, held.lower)
    )
    x, y = (np.asarray(array, float) for array in federation.START)
    z, first, second = np.zeros_like(y), np.zeros_like(x), np.zeros_like(x)
    rates = upper, lower, adjoint = 0.3, 0.2, 0.1
    results = run(
        quadratic.problem(),
        with_server_optimiser(FedBiO(1.0, *rates), ADAM),
        InMemoryDevices([held]),
        x,
        y,
        rounds=5,
    )
    b1, b2 = 0.9, 0.99
    for t, after in enumerate(results, start=1):
        gradient = upper * (shift + quadratic.RIDGE * x + coupling.T @ z)
        y, z = (
            y - lower * (matrix @ y - coupling @ x - offset),
            z - adjoint * (matrix @ z - (y - target)),
        )
        first = b1 * first + (1 - b1) * gradient
        second = b2 * second + (1 - b2) * gradient**2
        size = np.sqrt(second / (1 - b2**t)) + 1e-8
        x = x - 0.05 * first / (1 - b1**t) / size
        for actual, expected in zip(after.server.inner[:3], (x, y, z), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_resumed_run_gives_the_same_bits(tmp_path):
    algorithm = with_server_optimiser(FedBiO(0.1), optax.adam(0.05))
    arguments: Any = {
        "problem": quadratic.problem(),
        "devices": federation.in_memory(),
        "x": federation.START[0],
        "y": federation.START[1],
    }
    saved = Checkpoints(tmp_path, every=1)
    list(run(algorithm=algorithm, **arguments, rounds=2, checkpoints=saved))
    # Another process would create the same optimiser again.
    again = with_server_optimiser(FedBiO(0.1), optax.adam(0.05))
    *_, resumed = Run(algorithm=again, **arguments, rounds=4).resume(saved)
    *_, whole = run(algorithm=algorithm, **arguments, rounds=4)
    jax.tree.map(np.testing.assert_array_equal, resumed.server, whole.server)
    other = with_server_optimiser(FedBiO(0.1), optax.adam(0.06))
    with pytest.raises(CheckpointError, match="algorithm"):
        Run(algorithm=other, **arguments, rounds=5).resume(saved)


@pytest.mark.nightly
def test_rates_of_the_optimiser_are_swept_in_one_program():
    rates = 0.01, 0.1
    settings = [
        with_server_optimiser(FedBiO(0.1), optax_optimiser("adam", learning_rate=rate))
        for rate in rates
    ]
    inputs = quadratic.problem(), settings[0], federation.in_memory()
    measurements = sweep(
        Run(*inputs, *federation.START, rounds=3),
        settings,
        seeds=[0],
        measure=lambda server: server.x,
    ).measurements
    for number, algorithm in enumerate(settings):
        alone = ends(algorithm, weights=None)
        x = measurements[number, 0, -1]
        np.testing.assert_allclose(x, alone.x, rtol=0, atol=1e-10)


def test_what_is_no_optimiser_is_refused():
    with pytest.raises(TypeError, match=r"optimiser is 0\.01, .* optax.adam\(0.01\)"):
        with_server_optimiser(FedBiO(0.1), 0.01)
    with pytest.raises(ValueError, match="optax has no optimiser 'adm'; did you mean"):
        optax_optimiser("adm", learning_rate=0.1)
    with pytest.raises(ValueError, match="adam of optax needs the argument learning"):
        optax_optimiser("adam")
