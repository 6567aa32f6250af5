"""Properties of the losses of every task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedbilevel import LocalBSGM, NeumannSeries, run
from fedbilevel.metrics import newton_reference
from tests.algorithms.table import by_day
from tests.problems.tables import CASES, held, transcribed

pytestmark = pytest.mark.slow

every_task = pytest.mark.parametrize("name", CASES)
one_of_each_kind = pytest.mark.parametrize(
    "name", by_day(CASES, "regularisation", "hyper_cleaning")
)
"""A penalty of the lower loss, and weights of its examples."""


def as_jax(variable):
    return jax.tree.map(jnp.asarray, variable)


@pytest.mark.slow
@every_task
def test_losses_equal_their_transcriptions(name):
    case = CASES[name]()
    problem = case.task.problem
    upper, lower = held(case.task, 0)
    x, y = as_jax((case.x, case.y))
    np.testing.assert_allclose(
        problem.upper_loss(x, y, upper),
        transcribed(case.upper, case.x, case.y, upper),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        problem.lower_loss(x, y, lower),
        transcribed(case.lower, case.x, case.y, lower),
        rtol=1e-12,
    )


@pytest.mark.slow
@every_task
def test_oracles_equal_differences_of_the_transcriptions(name):
    case = CASES[name]()
    problem = case.task.problem
    upper, lower = held(case.task, 1)
    x, unravel_x = ravel_pytree(case.x)
    y, unravel_y = ravel_pytree(case.y)
    generator = np.random.default_rng(5)
    along_x, along_y = generator.normal(size=x.size), generator.normal(size=y.size)

    def value(loss, batch, move_x, move_y):
        at_x = jax.tree.map(np.asarray, unravel_x(x + move_x * along_x))
        at_y = np.asarray(unravel_y(y + move_y * along_y))
        return transcribed(loss, at_x, at_y, batch)

    def slope(loss, batch, move_x, move_y, h=1e-5):
        ahead = value(loss, batch, h * move_x, h * move_y)
        return (ahead - value(loss, batch, -h * move_x, -h * move_y)) / (2 * h)

    def flat(tree):
        return np.asarray(ravel_pytree(tree)[0])

    point = unravel_x(x), unravel_y(y)
    gradient_x, gradient_y = problem.upper_gradients(*point, upper)
    lower_gradient = problem.lower_gradient(*point, lower)
    lower_gradient_x = problem.lower_gradient_x(*point, lower)
    for got, expected in (
        (flat(gradient_x) @ along_x, slope(case.upper, upper, 1, 0)),
        (flat(gradient_y) @ along_y, slope(case.upper, upper, 0, 1)),
        (flat(lower_gradient) @ along_y, slope(case.lower, lower, 0, 1)),
        (flat(lower_gradient_x) @ along_x, slope(case.lower, lower, 1, 0)),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-8)

    def second(move_x, move_y, other_x, other_y, h=1e-4):
        """Return the second derivative of g along two directions."""
        signs = [(a, b) for a in (1, -1) for b in (1, -1)]
        corners = [
            a
            * b
            * value(
                case.lower,
                lower,
                h * (a * move_x + b * other_x),
                h * (a * move_y + b * other_y),
            )
            for a, b in signs
        ]
        return sum(corners) / (4 * h**2)

    vector = unravel_y(jnp.asarray(along_y))
    curved = flat(problem.hessian_product(*point, lower, vector)) @ along_y
    np.testing.assert_allclose(curved, second(0, 1, 0, 1), rtol=1e-5, atol=1e-6)
    mixed = flat(problem.cross_product(*point, lower, vector)) @ along_x
    np.testing.assert_allclose(mixed, second(1, 0, 0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
@every_task
def test_lower_losses_are_strongly_convex(name):
    case = CASES[name]()
    _, lower = held(case.task, 1)
    x, y = as_jax((case.x, case.y))
    hessian = jax.hessian(
        lambda flat: case.task.problem.lower_loss(x, flat.reshape(y.shape), lower)
    )(y.ravel())
    smallest = np.linalg.eigvalsh(hessian).min()
    assert smallest > 0
    assert smallest >= case.convexity - 1e-12


@pytest.mark.nightly
@one_of_each_kind
def test_the_reference_accepts_the_losses_and_its_hypergradient_is_that_of_phi(name):
    case = CASES[name]()
    problem, count = case.task.problem, case.task.devices.device_count
    # Its first call raises an error for losses that are not means over their batches.
    reference = newton_reference(problem, case.task.devices, tolerance=1e-11)
    x, unravel = ravel_pytree(case.x)
    along = np.random.default_rng(6).normal(size=x.size)

    def objective(move):
        at = unravel(x + move * along)
        y = reference.lower_solution(at, case.y)
        upper = [held(case.task, device)[0] for device in range(count)]
        return np.mean([problem.upper_loss(at, jnp.asarray(y), part) for part in upper])

    h = 1e-4
    expected = (objective(h) - objective(-h)) / (2 * h)
    got = ravel_pytree(reference.hypergradient(case.x, case.y))[0] @ along
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.nightly
@pytest.mark.parametrize("name", by_day(CASES, "hyper_cleaning"))
def test_two_rounds_move_both_variables_and_lower_the_lower_loss(name):
    task = CASES[name]().task
    algorithm = LocalBSGM(
        learning_rate=0.1,
        hypergradient=NeumannSeries(terms=2, scale=0.05),
        upper_mixing=10.0,
        lower_mixing=10.0,
        local_steps=2,
        batch_size=4,
    )
    *_, last = run(task.problem, algorithm, task.devices, task.x, task.y, rounds=2)
    for before, after in zip(
        jax.tree.leaves((task.x, task.y)),
        jax.tree.leaves((last.x, last.y)),
        strict=True,
    ):
        assert np.all(np.isfinite(after))
        assert before.dtype == after.dtype
    assert not np.allclose(ravel_pytree(last.x)[0], ravel_pytree(task.x)[0], atol=1e-9)

    def lower_loss(y):
        parts = [held(task, device)[1] for device in range(2)]
        return np.mean([task.problem.lower_loss(last.x, y, part) for part in parts])

    assert lower_loss(last.y) < lower_loss(task.y)
    for metric in task.metrics.values():
        assert np.isfinite(metric(last.x, last.y))


@pytest.mark.nightly
@every_task
def test_a_task_made_twice_has_an_equal_problem(name):
    # Equal problems share one compiled program.
    first, other = CASES[name]().task.problem, CASES[name]().task.problem
    assert first == other
    assert hash(first) == hash(other)
