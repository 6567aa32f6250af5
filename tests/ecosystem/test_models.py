"""Models of Equinox and Flax NNX are pytrees, so they can be x or y."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    InMemoryDevices,
    LocalBSGM,
    LocalExamples,
    NeumannSeries,
    run,
)

pytestmark = pytest.mark.slow

INPUTS, HIDDEN, OUTPUTS = 5, 4, 3
ALGORITHMS = [
    LocalBSGM(0.2, NeumannSeries(1, 0.3), local_steps=2, batch_size=4),
    FedBiO(0.2, local_steps=2, batch_size=4),
]
both_families = pytest.mark.parametrize(
    "algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__
)
generator = np.random.default_rng(0)
BODY = {"weight": generator.normal(size=(HIDDEN, INPUTS)), "bias": np.ones(HIDDEN)}
HEAD = {"weight": generator.normal(size=(OUTPUTS, HIDDEN)), "bias": np.ones(OUTPUTS)}


def devices():
    generator = np.random.default_rng(1)

    def held():
        features = generator.normal(size=(6, INPUTS))
        return features, generator.normal(size=(6, OUTPUTS))

    return InMemoryDevices([LocalExamples(held(), held()) for _ in range(3)])


def problem(forward, weights_of):
    """Return a problem that learns features below a linear model with a penalty."""

    def fit(x, y, batch):
        features, targets = batch
        outputs = jax.vmap(lambda row: forward(x, y, row))(features)
        return jnp.mean((outputs - targets) ** 2)

    def lower(x, y, batch):
        return fit(x, y, batch) + 0.1 * jnp.sum(weights_of(y) ** 2)

    return BilevelProblem(fit, lower)


def after_rounds(problem, algorithm, x, y):
    *_, last = run(problem, algorithm, devices(), x, y, rounds=2)
    return last.x, last.y


@cache
def plain(algorithm):
    """Return both layers, trained as plain arrays."""

    def layer(parameters, row):
        return parameters["weight"] @ row + parameters["bias"]

    def forward(x, y, row):
        return layer(y, jnp.tanh(layer(x, row)))

    start = jax.tree.map(jnp.array, (BODY, HEAD))
    return after_rounds(problem(forward, lambda y: y["weight"]), algorithm, *start)


def assert_same_numbers(actual, expected):
    for name in ("weight", "bias"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=1e-10)


def linear(parameters):
    """Return an Equinox layer with these parameters."""
    outputs, inputs = parameters["weight"].shape
    layer = eqx.nn.Linear(inputs, outputs, key=jax.random.key(0))
    held = jnp.array(parameters["weight"]), jnp.array(parameters["bias"])
    return eqx.tree_at(lambda linear: (linear.weight, linear.bias), layer, held)


@pytest.mark.nightly
@both_families
def test_the_array_parts_of_equinox_modules_are_x_and_y(algorithm):
    body, fixed = eqx.partition(
        eqx.nn.Sequential([linear(BODY), eqx.nn.Lambda(jnp.tanh)]), eqx.is_array
    )
    head = eqx.filter(linear(HEAD), eqx.is_array)

    def forward(x, y, row):
        return y(eqx.combine(x, fixed)(row))

    x, y = after_rounds(problem(forward, lambda y: y.weight), algorithm, body, head)
    assert isinstance(y, eqx.nn.Linear)
    body_after, head_after = plain(algorithm)
    assert_same_numbers({"weight": x[0].weight, "bias": x[0].bias}, body_after)
    assert_same_numbers({"weight": y.weight, "bias": y.bias}, head_after)
    assert not np.allclose(x[0].weight, BODY["weight"])


def layer_of(parameters):
    """Return an NNX layer with these parameters; its kernel is transposed."""
    outputs, inputs = parameters["weight"].shape
    layer = nnx.Linear(inputs, outputs, param_dtype=float, rngs=nnx.Rngs(0))
    layer.kernel[...] = jnp.array(parameters["weight"].T)
    layer.bias[...] = jnp.array(parameters["bias"])
    return layer


@both_families
def test_the_states_of_nnx_models_are_x_and_y(algorithm):
    body_form, body = nnx.split(layer_of(BODY))
    head_form, head = nnx.split(layer_of(HEAD))

    def forward(x, y, row):
        hidden = jnp.tanh(nnx.merge(body_form, x)(row))
        return nnx.merge(head_form, y)(hidden)

    def weights_of(y):
        return y["kernel"][...]

    x, y = after_rounds(problem(forward, weights_of), algorithm, body, head)
    assert isinstance(nnx.merge(head_form, y), nnx.Linear)
    for layer, expected in zip((x, y), plain(algorithm), strict=True):
        kernel, bias = layer["kernel"][...], layer["bias"][...]
        assert_same_numbers({"weight": kernel.T, "bias": bias}, expected)
