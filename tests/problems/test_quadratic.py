import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import ConjugateGradient, LocalBSGM, LocalBSGVRM, run
from fedbilevel.metrics import newton_reference, stationarity
from fedbilevel.problems import Quadratic, quadratic_task, random_quadratic
from fedbilevel.problems.scatter import scatter
from tests.algorithms.table import at_night
from tests.problems.tables import held

X = np.array([0.4, -1.1])


def different(heterogeneity: float = 0.8) -> Quadratic:
    return random_quadratic(
        devices=3, upper_size=2, lower_size=3, heterogeneity=heterogeneity, seed=2
    )


def noisy(quadratic: Quadratic):
    return quadratic_task(quadratic, examples=5, noise=6.0, curvature_noise=2.0)


@pytest.mark.slow
def test_closed_forms_hold_exactly_for_noisy_examples():
    quadratic = different()
    task = noisy(quadratic)
    reference = newton_reference(task.problem, task.devices, tolerance=1e-12)
    y = reference.lower_solution(X, np.zeros(3))
    np.testing.assert_allclose(quadratic.lower_solution(X), y, rtol=0, atol=1e-10)
    gradient = reference.hypergradient(X, y)
    np.testing.assert_allclose(quadratic.hypergradient(X), gradient, rtol=0, atol=1e-9)
    losses = [
        task.problem.upper_loss(jnp.asarray(X), jnp.asarray(y), held(task, device)[0])
        for device in range(3)
    ]
    np.testing.assert_allclose(quadratic.objective(X), np.mean(losses), rtol=1e-10)


def test_the_solution_minimises_the_objective():
    quadratic = different()
    best = quadratic.solution()
    np.testing.assert_allclose(quadratic.hypergradient(best), 0, atol=1e-12)
    for move in np.random.default_rng(0).normal(size=(20, 2)):
        assert quadratic.objective(best + move) > quadratic.objective(best)


def test_the_reference_measures_stationarity():
    quadratic = different()
    y = quadratic.lower_solution(X) + 2.0
    measured = stationarity(quadratic.reference(), X, y)
    np.testing.assert_allclose(measured.lower_error, 3 * 4.0, rtol=1e-12)
    expected = np.sum(quadratic.hypergradient(X) ** 2)
    np.testing.assert_allclose(measured.hypergradient, expected, rtol=1e-12)


def local_hypergradient(task, device, x, y):
    """Return ∇x f_k − ∇²xy g_k [∇²yy g_k]⁻¹ ∇y f_k by dense automatic derivatives."""
    upper, lower = held(task, device)
    problem = task.problem
    gradient_x, gradient_y = problem.upper_gradients(x, y, upper)
    hessian = jax.hessian(problem.lower_loss, argnums=1)(x, y, lower)
    mixed = jax.jacfwd(jax.grad(problem.lower_loss, argnums=0), argnums=1)(x, y, lower)
    return gradient_x - mixed @ jnp.linalg.solve(hessian, gradient_y)


@pytest.mark.slow
def test_at_the_biased_solution_local_hypergradients_and_lower_gradients_cancel():
    quadratic = different()
    task = noisy(quadratic)
    x, y = map(jnp.asarray, quadratic.biased_solution())
    directions = [local_hypergradient(task, device, x, y) for device in range(3)]
    np.testing.assert_allclose(np.mean(directions, axis=0), 0, atol=1e-10)
    assert np.linalg.norm(directions[0]) > 0.1
    gradients = [
        task.problem.lower_gradient(x, y, held(task, device)[1]) for device in range(3)
    ]
    np.testing.assert_allclose(np.mean(gradients, axis=0), 0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make", [LocalBSGM, *at_night(LocalBSGVRM)])
def test_the_papers_algorithms_settle_at_the_biased_solution(make):
    quadratic = different()
    task = quadratic_task(quadratic, examples=1)
    algorithm = make(
        learning_rate=0.2,
        hypergradient=ConjugateGradient(tolerance=1e-12),
        upper_mixing=5.0,
        lower_mixing=5.0,
    )
    *_, last = run(task.problem, algorithm, task.devices, task.x, task.y, rounds=400)
    x, y = quadratic.biased_solution()
    np.testing.assert_allclose(last.x, x, rtol=0, atol=1e-7)
    np.testing.assert_allclose(last.y, y, rtol=0, atol=1e-7)
    bias = np.linalg.norm(x - quadratic.solution())
    assert bias > 0.1
    np.testing.assert_allclose(
        task.metrics["distance"](last.x, last.y), bias, atol=1e-6
    )


def test_heterogeneity_and_the_number_of_devices_move_the_biased_solution_only():
    alike = random_quadratic(devices=1)
    x, y = alike.biased_solution()
    np.testing.assert_allclose(x, alike.solution(), atol=1e-12)
    np.testing.assert_allclose(y, alike.lower_solution(x), atol=1e-12)
    for count, heterogeneity in ((2, 0.5), (7, 2.0), (7, 0.0)):
        other = random_quadratic(devices=count, heterogeneity=heterogeneity)
        np.testing.assert_allclose(other.solution(), x, atol=1e-10)
        at = np.ones(3)
        np.testing.assert_allclose(
            other.hypergradient(at), alike.hypergradient(at), atol=1e-10
        )
        moved = np.linalg.norm(other.biased_solution()[0] - x)
        assert (moved > 0.05) == (heterogeneity > 0)
        assert np.linalg.eigvalsh(other.matrices).min() > 0


@pytest.mark.slow
def test_noise_has_the_size_that_was_asked_for():
    quadratic = random_quadratic(devices=1)
    task = quadratic_task(quadratic, examples=4000, noise=2.5)
    upper, lower = held(task, 0)
    x, y = jnp.ones(3), jnp.ones(4)

    def each(oracle, batch):
        def evaluate(row):
            return oracle(x, y, jax.tree.map(lambda leaf: leaf[None], row))

        return jax.vmap(evaluate)(batch)

    gradients = (
        *each(task.problem.upper_gradients, upper),
        each(task.problem.lower_gradient, lower),
    )
    for gradient in gradients:
        np.testing.assert_allclose(np.std(gradient, axis=0), 2.5, rtol=0.05)


def test_two_centred_arrays_scatter_as_much_as_many():
    # Without a correction they would have half the variance.
    drawn = scatter(np.random.default_rng(0), np.zeros(20_000), 2, deviation=3.0)
    np.testing.assert_allclose(np.mean(np.var(drawn, axis=0)), 9.0, rtol=0.05)


@pytest.mark.slow
def test_curvature_noise_scatters_matrices_that_stay_positive_definite():
    quadratic = random_quadratic(devices=1)
    task = quadratic_task(quadratic, examples=50, curvature_noise=30.0)
    _, lower = held(task, 0)
    assert np.linalg.eigvalsh(lower.matrix).min() > 0
    assert np.std(lower.matrix, axis=0).min() > 0.1
    np.testing.assert_allclose(np.mean(lower.matrix, 0), quadratic.matrices[0])
    np.testing.assert_allclose(np.mean(lower.coupling, 0), quadratic.couplings[0])


def test_devices_that_are_alike_share_their_examples():
    task = quadratic_task(random_quadratic(devices=1000), examples=7, noise=1.0)
    cohort = task.devices.cohort(np.array([0, 999]))
    assert len(cohort.upper.arrays.shift) == 7
    assert len(cohort.lower.arrays.offset) == 7
    assert task.devices.device_count == 1000


def test_impossible_quadratics_are_refused():
    with pytest.raises(ValueError, match=r"ridge is 0\.0, expected"):
        random_quadratic(devices=2, ridge=0.0)
    with pytest.raises(ValueError, match="a single device or example equals the mean"):
        random_quadratic(devices=1, heterogeneity=0.5)
    with pytest.raises(ValueError, match=r"is -1\.0, expected at least 0"):
        random_quadratic(devices=2, heterogeneity=-1.0)
    with pytest.raises(ValueError, match="a single device or example equals the mean"):
        quadratic_task(random_quadratic(devices=2), examples=1, curvature_noise=1.0)
