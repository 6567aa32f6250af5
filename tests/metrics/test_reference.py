import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples, OnDemandDevices
from fedbilevel.metrics import Reference, newton_reference, stationarity
from tests import quadratic


def ragged() -> list[LocalExamples]:
    """Return three devices of different sizes, so that weights matter."""
    generator = np.random.default_rng(5)
    return [quadratic.examples(generator, count, 0.4) for count in (2, 5, 9)]


def on_demand(held: list[LocalExamples]) -> OnDemandDevices:
    return OnDemandDevices(
        len(held), held.__getitem__, upper_capacity=11, lower_capacity=10
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", [InMemoryDevices, on_demand])
@pytest.mark.parametrize("block_size", [3, 100])
def test_newton_reference_equals_the_closed_form(source, block_size):
    held = ragged()
    mean = quadratic.Mean.of(held)
    reference = newton_reference(
        quadratic.problem(), source(held), tolerance=1e-11, block_size=block_size
    )
    x, y = np.full(quadratic.X_SIZE, 0.7), np.zeros(quadratic.Y_SIZE)
    solution = reference.lower_solution(x, y)
    np.testing.assert_allclose(solution, mean.lower_solution(x), rtol=0, atol=1e-9)
    gradient = reference.hypergradient(x, y)
    np.testing.assert_allclose(gradient, mean.hypergradient(x), rtol=0, atol=1e-8)
    measured = stationarity(reference, x, y)
    true = np.sum(mean.hypergradient(x) ** 2), np.sum(mean.lower_solution(x) ** 2)
    np.testing.assert_allclose(measured, true, rtol=1e-7)
    np.testing.assert_allclose(measured.total(3.0), true[0] + 9 * true[1], rtol=1e-7)


@pytest.mark.slow
def test_weights_count_devices_not_examples():
    held = ragged()
    reference = newton_reference(
        quadratic.problem(), InMemoryDevices(held), weights=[0.0, 2.0, 0.0]
    )
    x, y = np.full(quadratic.X_SIZE, 0.7), np.zeros(quadratic.Y_SIZE)
    expected = quadratic.Mean.of(held[1:2]).lower_solution(x)
    np.testing.assert_allclose(reference.lower_solution(x, y), expected, atol=1e-8)


@pytest.mark.slow
def test_an_absent_device_counts_for_nothing_even_if_its_data_are_not_finite():
    held = ragged()
    held[0] = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), held[0])
    reference = newton_reference(
        quadratic.problem(), InMemoryDevices(held), weights=[0.0, 1.0, 1.0]
    )
    x, y = np.full(quadratic.X_SIZE, 0.7), np.zeros(quadratic.Y_SIZE)
    expected = quadratic.Mean.of(held[1:]).hypergradient(x)
    np.testing.assert_allclose(reference.hypergradient(x, y), expected, atol=1e-7)


@pytest.mark.slow
def test_a_hopelessly_conditioned_lower_loss_is_reported(monkeypatch):
    monkeypatch.setattr("fedbilevel.metrics.reference.CONJUGATE_GRADIENT_STEPS", 2)
    spectrum = np.logspace(0, -6, 12)
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.sum(y) + 0 * jnp.mean(batch),
        lower_loss=lambda x, y, batch: (
            0.5 * jnp.sum(spectrum * y**2) + 0 * jnp.mean(batch) * x
        ),
    )
    devices = InMemoryDevices([LocalExamples(np.ones(1), np.ones(1))])
    with pytest.raises(ArithmeticError, match="ill-conditioned"):
        newton_reference(problem, devices).hypergradient(1.0, np.zeros(12))


@pytest.mark.nightly
def test_newton_reference_on_a_nested_nonlinear_problem_equals_dense_algebra():
    generator = np.random.default_rng(6)

    def lower(x, y, batch):
        features, labels = batch
        scores = jax.nn.log_softmax(features @ y["weights"].T + y["bias"][None])
        fit = -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))
        penalty = jnp.sum(jnp.exp(x)[None] * y["weights"] ** 2)
        return fit + penalty + 0.1 * jnp.sum(y["bias"] ** 2)

    def upper(x, y, batch):
        return lower(x, y, batch) - jnp.sum(jnp.exp(x)[None] * y["weights"] ** 2)

    def held(count):
        rows = generator.normal(size=(count, 3)), generator.integers(0, 3, count)
        return LocalExamples(rows, rows)

    problem = BilevelProblem(upper, lower)
    devices = [held(8), held(8)]
    reference = newton_reference(problem, InMemoryDevices(devices), tolerance=1e-11)
    x = jnp.array([-1.0, 0.0, -2.0])
    zero = {"weights": jnp.zeros((3, 3)), "bias": jnp.zeros(3)}
    y = reference.lower_solution(x, zero)
    flat_y, unravel = ravel_pytree(y)
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *devices)

    def f(x, flat):
        return upper(x, unravel(flat), rows.upper)

    def g(x, flat):
        return lower(x, unravel(flat), rows.lower)

    assert np.linalg.norm(jax.grad(g, 1)(x, flat_y)) < 1e-10
    inverse_product = np.linalg.solve(
        jax.hessian(g, 1)(x, flat_y), jax.grad(f, 1)(x, flat_y)
    )
    cross = jax.jacfwd(jax.grad(g, 0), 1)(x, flat_y)
    expected = jax.grad(f, 0)(x, flat_y) - cross @ inverse_product
    got = reference.hypergradient(x, zero)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.single_precision
def test_a_single_precision_run_is_measured_in_double_precision():
    held = ragged()
    reference = newton_reference(quadratic.problem(), InMemoryDevices(held))
    x = jnp.full(quadratic.X_SIZE, 0.7)
    y = reference.lower_solution(x, jnp.zeros(quadratic.Y_SIZE))
    # The data themselves were rounded to single precision when they were stored.
    expected = quadratic.Mean.of(held).lower_solution(np.asarray(x, float))
    np.testing.assert_allclose(y, expected, atol=1e-6)
    assert y.dtype == np.float64
    assert stationarity(reference, x, y).lower_error < 1e-15


@pytest.mark.slow
def test_a_loss_without_a_minimum_is_reported():
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.sum(y**2),
        lower_loss=lambda x, y, batch: jnp.sum(y) + 0 * jnp.mean(batch),
    )
    devices = InMemoryDevices([LocalExamples(np.ones(2), np.ones(2))])
    with pytest.raises(ArithmeticError, match="strongly convex"):
        newton_reference(problem, devices).lower_solution(1.0, np.zeros(2))


def test_a_loss_that_sums_over_its_batch_is_refused():
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        lower_loss=lambda x, y, batch: jnp.sum((y - batch) ** 2),
    )
    devices = InMemoryDevices([LocalExamples(np.arange(2.0), np.arange(2.0))])
    with pytest.raises(ValueError, match=r"lower_loss is not a mean .* on 2 examples"):
        newton_reference(problem, devices).hypergradient(1.0, 0.0)


def test_a_reference_may_be_closed_forms():
    mean = quadratic.Mean.of(ragged())
    reference = Reference(
        lambda x, near: mean.lower_solution(x), lambda x, near: mean.hypergradient(x)
    )
    at = stationarity(reference, mean.solution(), mean.lower_solution(mean.solution()))
    assert at.hypergradient < 1e-24
    assert at.lower_error < 1e-24


def test_a_run_that_diverged_is_told_so():
    devices = quadratic.exact_device()
    reference = newton_reference(quadratic.problem(), devices)
    with pytest.raises(ArithmeticError, match="the run has diverged"):
        reference.lower_solution(
            np.full(quadratic.X_SIZE, np.nan), np.zeros(quadratic.Y_SIZE)
        )
