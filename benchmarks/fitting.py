"""Training to convergence on pooled data, for references and initial points."""

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.optimize import minimize

from fedbilevel.problems import LabelledTable

ITERATIONS = 300


Loss = Callable[[PyTree, PyTree], Float[Array, ""]]
"""A loss of a variable and of data."""


def minimiser(loss: Loss, start: PyTree, data: PyTree) -> PyTree:
    """Return the minimiser of a loss by L-BFGS."""
    flat, unravel = ravel_pytree(start)
    evaluate_loss = _value_and_gradient(loss)

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = evaluate_loss(unravel(jnp.asarray(vector, flat.dtype)), data)
        return float(value), np.asarray(ravel_pytree(gradient)[0], float)

    options = {"maxiter": ITERATIONS}
    result = minimize(
        evaluate, np.asarray(flat, float), jac=True, method="L-BFGS-B", options=options
    )
    return unravel(jnp.asarray(result.x, flat.dtype))


@lru_cache(maxsize=8)
def _value_and_gradient(loss: Loss) -> Callable[[PyTree, PyTree], tuple[Array, PyTree]]:
    # Cached, so that a loss that is minimised many times is compiled once.
    return jax.jit(jax.value_and_grad(loss))


def softmax(
    start: PyTree,
    tables: list[LabelledTable],
    ridge: float,
    weights: Float[np.ndarray, "examples"] | None = None,
) -> PyTree:
    """Return softmax regression trained on all the tables' examples.

    Args:
        start: initial model.
        tables: the examples.
        ridge: penalty of the model.
        weights: weights of the examples, with sum 1; None: equal weights.
    """
    features, labels = (
        jnp.concatenate([jnp.asarray(getattr(table, part)) for table in tables])
        for part in ("features", "labels")
    )
    if weights is None:
        weights = np.full(len(labels), 1 / len(labels))
    numbers = (jnp.asarray(value, features.dtype) for value in (weights, ridge))
    return minimiser(_softmax_loss, start, (features, labels, *numbers))


def softmax_losses(y: PyTree, table: LabelledTable) -> Float[np.ndarray, "examples"]:
    """Return the loss of each example."""
    features, labels = jnp.asarray(table.features), jnp.asarray(table.labels)
    return np.asarray(_cross_entropy(y, features, labels))


def _softmax_loss(y: Array, data: tuple[Array, ...]) -> Float[Array, ""]:
    features, labels, weights, ridge = data
    fit = jnp.sum(weights * _cross_entropy(y, features, labels))
    return fit + 0.5 * ridge * jnp.sum(y**2)


def _cross_entropy(y: Array, features: Array, labels: Array) -> Float[Array, "rows"]:
    scores = jax.nn.log_softmax(features @ y.T)
    return -jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
