"""Estimated constants against closed forms and dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.metrics import estimation, extremes
from tests import quadratic

pytestmark = pytest.mark.slow

X, Y = np.array([0.7, -0.2, 0.1]), np.array([0.5, 0.0, -1.0, 2.0])


def estimate(problem, held, x=X, y=Y, **options):
    devices = InMemoryDevices(held)
    return estimation.estimate_assumptions(problem, devices, x, y, **options)


def hessians(lower) -> tuple[np.ndarray, np.ndarray]:
    """Return the Hessians of f and g in (x, y) for a matrix and a coupling."""
    matrix, coupling = lower[:2]
    of_f = np.diag([quadratic.RIDGE] * quadratic.X_SIZE + [1.0] * quadratic.Y_SIZE)
    corner = np.zeros((quadratic.X_SIZE, quadratic.X_SIZE))
    return of_f, np.block([[corner, -coupling.T], [-coupling, matrix]])


def spectral_norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


@pytest.mark.nightly
@pytest.mark.parametrize("block_size", [3, 100])
def test_the_mean_of_a_ragged_quadratic(block_size):
    generator = np.random.default_rng(5)
    held = [quadratic.examples(generator, count, 0.4) for count in (2, 5, 9)]
    got = estimate(quadratic.problem(), held, examples=0, block_size=block_size)
    mean = quadratic.Mean.of(held)
    eigenvalues = np.linalg.eigvalsh(mean.matrix)
    np.testing.assert_allclose(got.strong_convexity, eigenvalues[0], rtol=1e-10)
    largest = max(map(spectral_norm, hessians(mean)))
    assert largest > eigenvalues[-1]  # so that the mixed part matters
    np.testing.assert_allclose(got.gradient_lipschitz, largest, rtol=1e-10)
    assert got.cross_lipschitz == got.curvature_lipschitz == 0

    # Every device has the same weight, whatever its number of examples.
    mean_gradient = mean.matrix @ Y - mean.coupling @ X - mean.offset
    variance, steepest = 0.0, 0.0
    for device in held:
        for matrix, coupling, offset in zip(*device.lower, strict=True):
            distance = matrix @ Y - coupling @ X - offset - mean_gradient
            variance += distance @ distance / (3 * len(device.lower.offset))
        for target, shift in zip(*device.upper, strict=True):
            gradient = np.concatenate([shift + quadratic.RIDGE * X, Y - target])
            steepest = max(steepest, float(np.linalg.norm(gradient)))
    np.testing.assert_allclose(got.deviation, np.sqrt(variance), rtol=1e-10)
    np.testing.assert_allclose(got.upper_lipschitz, steepest, rtol=1e-10)


@pytest.mark.slow
def test_single_examples_count_where_they_are_worse_than_their_mean():
    held = quadratic.devices(1, 3, 0.8)
    got = estimate(quadratic.problem(), held, examples=40)
    lower = list(zip(*held[0].lower, strict=True))
    smallest = [np.linalg.eigvalsh(item[0])[0] for item in lower]
    largest = [spectral_norm(hessians(item)[1]) for item in lower]
    np.testing.assert_allclose(got.strong_convexity, min(smallest), rtol=1e-10)
    np.testing.assert_allclose(got.gradient_lipschitz, max(largest), rtol=1e-10)
    of_mean = estimate(quadratic.problem(), held, examples=0)
    assert of_mean.strong_convexity > got.strong_convexity
    assert of_mean.gradient_lipschitz < got.gradient_lipschitz


@pytest.mark.slow
def test_a_large_spectrum_by_lanczos():
    size = 3 * extremes.DENSE_SIZE
    spectrum = np.geomspace(0.02, 7.0, size)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
    matrix = turn @ np.diag(spectrum) @ turn.T
    problem = BilevelProblem(
        lambda x, y, batch: jnp.sum(x * y) + 0 * jnp.mean(batch),
        lambda x, y, batch: 0.5 * y @ matrix @ y * jnp.mean(batch),
    )
    ones = np.ones(2)
    got = estimate(
        problem, [LocalExamples(ones, ones)], np.ones(size), np.ones(size), examples=1
    )
    np.testing.assert_allclose(got.strong_convexity, spectrum[0], rtol=1e-5)
    np.testing.assert_allclose(got.gradient_lipschitz, spectrum[-1], rtol=1e-5)


@pytest.mark.slow
def test_a_large_upper_loss_without_curvature():
    # Its Hessian is zero, and so is most of the lower one's in (x, y).
    size = 3 * extremes.DENSE_SIZE
    problem = BilevelProblem(
        lambda x, y, batch: jnp.sum(y) + 0 * jnp.mean(batch),
        lambda x, y, batch: jnp.sum(y**2) * jnp.mean(batch) + 0 * jnp.sum(x),
    )
    ones = np.ones(2)
    held = [LocalExamples(ones, ones)]
    got = estimate(problem, held, np.ones(size), np.ones(size), examples=1)
    np.testing.assert_allclose(got.strong_convexity, 2.0, rtol=1e-6)
    np.testing.assert_allclose(got.gradient_lipschitz, 2.0, rtol=1e-6)
    np.testing.assert_allclose(got.upper_lipschitz, np.sqrt(size))


def test_eigenvalues_that_are_not_found_are_reported(monkeypatch):
    monkeypatch.setattr("fedbilevel.metrics.extremes.LANCZOS_RESTARTS", 1)
    size = 500
    problem = BilevelProblem(
        lambda x, y, batch: jnp.sum(y) * x + 0 * jnp.mean(batch),
        lambda x, y, batch: (
            0.5 * jnp.sum(jnp.geomspace(1e-9, 1.0, size) * y**2) * jnp.mean(batch)
        ),
    )
    ones = np.ones(1)
    with pytest.raises(ArithmeticError, match="Raise the tolerance"):
        estimate(problem, [LocalExamples(ones, ones)], 1.0, np.ones(size))


@pytest.mark.slow
def test_third_derivatives_of_penalties():
    # g = ½ Σ e^{x_j} y_j² b: each block of its second derivatives is diagonal.
    problem = BilevelProblem(
        lambda x, y, batch: jnp.sum(y**2) + 0 * jnp.mean(batch),
        lambda x, y, batch: 0.5 * jnp.sum(jnp.exp(x) * y**2) * jnp.mean(batch),
    )
    examples = LocalExamples(np.ones(2), np.array([0.5, 1.5]))
    x, y = np.array([0.3, -1.0, 0.8, 0.5]), np.array([3.0, 2.0, -0.1, 1.5])
    for count, heaviest in ((0, 1.0), (20, 1.5)):
        got = estimate(problem, [examples], x, y, examples=count)
        changes = np.exp(x) * np.sqrt(1 + y**2)
        np.testing.assert_allclose(
            got.curvature_lipschitz, heaviest * np.exp(x).max(), rtol=1e-6
        )
        np.testing.assert_allclose(
            got.cross_lipschitz, heaviest * changes.max(), rtol=1e-6
        )


@pytest.mark.nightly
def test_third_derivatives_lie_between_what_directions_show_and_what_is_possible():
    generator = np.random.default_rng(3)
    features = generator.normal(size=(6, 4))

    def lower(x, y, batch):
        scores = jnp.logaddexp(0.0, batch @ y + jnp.sin(x[0]) * (batch[:, :2] @ x))
        return jnp.mean(scores) + jnp.sum(y**2)

    problem = BilevelProblem(lambda x, y, batch: y @ y + 0 * jnp.mean(batch), lower)
    x, y = generator.normal(size=2), generator.normal(size=4)
    got = estimate(problem, [LocalExamples(features, features)], x, y, examples=0)

    def hessian(z):
        return jax.hessian(lambda z: lower(z[:2], z[2:], features))(z)

    third = np.asarray(jax.jacfwd(hessian)(np.concatenate([x, y])))
    blocks = {
        "cross_lipschitz": third[:2, 2:],
        "curvature_lipschitz": third[2:, 2:],
    }
    for name, block in blocks.items():
        directions = generator.normal(size=(1000, 6))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        seen = max(spectral_norm(block @ direction) for direction in directions)
        possible = spectral_norm(block.reshape(-1, block.shape[-1]))
        assert seen <= getattr(got, name) <= possible * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.single_precision
def test_a_single_precision_problem_is_estimated_in_double_precision():
    held = quadratic.devices(2, 4, 0.4)
    got = estimate(quadratic.problem(), held, examples=0)
    single = quadratic.Mean.of(
        jax.tree.map(lambda leaf: leaf.astype(np.float32).astype(float), held)
    )
    eigenvalues = np.linalg.eigvalsh(single.matrix)
    np.testing.assert_allclose(got.strong_convexity, eigenvalues[0], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lower", "message"),
    [
        (lambda x, y, b: jnp.mean((b @ y - x) ** 2), "on a single example"),
        (lambda x, y, b: jnp.mean(b @ y) * x, "on the mean of all examples"),
        (lambda x, y, b: jnp.sum((b @ y - x) ** 2), "not a sum"),
    ],
)
def test_losses_that_the_assumptions_exclude_are_refused(lower, message):
    problem = BilevelProblem(lambda x, y, b: jnp.mean((b @ y) ** 2) + x**2, lower)
    rows = np.array([[1.0, 0.2], [0.3, 1.0]])
    with pytest.raises(ValueError, match=message):
        estimate(problem, [LocalExamples(rows, rows)], 1.0, np.array([2.0, 3.0]))
