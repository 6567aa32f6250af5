from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedbilevel import BilevelProblem


def softmax_case() -> tuple[BilevelProblem, Any, Any, Any]:
    generator = np.random.default_rng(0)

    def loss(y, batch):
        features, labels = batch
        scores = jax.nn.log_softmax(features @ y)
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    def penalised(x, y, batch):
        return loss(y, batch) + 0.5 * jnp.sum(jnp.exp(x)[:, None] * y**2)

    def upper(x, y, batch):
        return loss(y, batch) + 0.1 * jnp.sum(jnp.tanh(x) ** 2)

    batch = generator.normal(size=(7, 5)), generator.integers(0, 3, size=7)
    x, y = generator.normal(size=5), generator.normal(size=(5, 3))
    return BilevelProblem(upper, penalised), x, y, batch


def nested_case() -> tuple[BilevelProblem, Any, Any, Any]:
    generator = np.random.default_rng(1)

    def lower(x, y, batch):
        features, targets = batch["features"], batch["targets"]
        hidden = jnp.tanh(features @ y["layers"][0]) @ y["layers"][1] + y["bias"]
        weights = jnp.exp(x["weight"] * targets)
        smooth = x["scales"][0] ** 2 * jnp.sum(y["layers"][0] ** 2)
        return jnp.mean(weights * (hidden - targets) ** 2) + smooth + y["bias"] ** 4

    def upper(x, y, batch):
        return lower(x, y, batch) ** 2 + x["scales"][0] * y["bias"]

    x = {"weight": jnp.array(0.3), "scales": (jnp.array(0.7),)}
    y = {
        "layers": [
            jnp.asarray(generator.normal(size=(4, 2))),
            jnp.asarray(generator.normal(size=2)),
        ],
        "bias": jnp.array(0.2),
    }
    batch = {
        "features": generator.normal(size=(6, 4)),
        "targets": generator.normal(size=6),
    }
    return BilevelProblem(upper, lower), x, y, batch


@pytest.mark.slow
@pytest.mark.parametrize("case", [softmax_case, nested_case])
def test_each_oracle_equals_dense_autodiff(case):
    problem, x, y, batch = case()
    flat_x, unravel_x = ravel_pytree(x)
    flat_y, unravel_y = ravel_pytree(y)

    def flat(loss):
        return lambda a, b: loss(unravel_x(a), unravel_y(b), batch)

    vector = np.random.default_rng(2).normal(size=flat_y.shape)
    tree_vector = unravel_y(jnp.asarray(vector))

    def assert_equal(got, expected):
        np.testing.assert_allclose(ravel_pytree(got)[0], expected, rtol=0, atol=1e-10)

    upper, lower = flat(problem.upper_loss), flat(problem.lower_loss)
    gradient_x, gradient_y = problem.upper_gradients(x, y, batch)
    assert_equal(gradient_x, jax.jacrev(upper, 0)(flat_x, flat_y))
    assert_equal(gradient_y, jax.jacrev(upper, 1)(flat_x, flat_y))
    gradient = problem.lower_gradient(x, y, batch)
    assert_equal(gradient, jax.jacfwd(lower, 1)(flat_x, flat_y))
    gradient = problem.lower_gradient_x(x, y, batch)
    assert_equal(gradient, jax.jacfwd(lower, 0)(flat_x, flat_y))
    hessian = jax.hessian(lower, 1)(flat_x, flat_y)
    product = problem.hessian_product(x, y, batch, tree_vector)
    assert_equal(product, hessian @ vector)
    cross = jax.jacfwd(jax.jacrev(lower, 0), 1)(flat_x, flat_y)
    product = problem.cross_product(x, y, batch, tree_vector)
    assert_equal(product, cross @ vector)
    assert str(jax.tree.structure(product)) == str(jax.tree.structure(x))


def test_an_oracle_may_be_replaced():
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: y**2,
        lower_loss=lambda x, y, batch: (y - x) ** 2,
        lower_gradient=lambda x, y, batch: 10 * y,
    )
    assert problem.lower_gradient(1.0, 2.0, None) == 20.0
    # The Hessian product is the derivative of the replaced gradient.
    assert problem.hessian_product(1.0, 2.0, None, 3.0) == 30.0


def test_problems_of_the_same_losses_are_equal():
    def loss(x, y, batch):
        return y**2

    assert BilevelProblem(loss, loss) == BilevelProblem(loss, loss)
    assert hash(BilevelProblem(loss, loss)) == hash(BilevelProblem(loss, loss))


def test_a_loss_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="upper_loss"):
        BilevelProblem(3.0, lambda x, y, batch: y)  # type: ignore[arg-type]
