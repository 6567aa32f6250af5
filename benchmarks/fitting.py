"""Training to the end on data in one place, for references and starting points."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.optimize import minimize

from fedbilevel.problems import LabelledTable

ITERATIONS = 300


def minimiser(
    loss: Callable[[PyTree, PyTree], Float[Array, ""]], start: PyTree, data: PyTree
) -> PyTree:
    """Return the variable that L-BFGS finds."""
    flat, unravel = ravel_pytree(start)
    slope = jax.jit(jax.value_and_grad(lambda v, data: loss(unravel(v), data)))

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(jnp.asarray(vector, flat.dtype), data)
        return float(value), np.asarray(gradient, float)

    options = {"maxiter": ITERATIONS}
    found = minimize(
        evaluate, np.asarray(flat, float), jac=True, method="L-BFGS-B", options=options
    )
    return unravel(jnp.asarray(found.x, flat.dtype))


def softmax(start: PyTree, tables: list[LabelledTable], ridge: float) -> PyTree:
    """Return softmax regression trained on all the tables' examples."""
    data = tuple(
        jnp.concatenate([jnp.asarray(getattr(table, part)) for table in tables])
        for part in ("features", "labels")
    )

    def loss(y: Array, data: tuple[Array, Array, float]) -> Float[Array, ""]:
        features, labels, ridge = data
        scores = jax.nn.log_softmax(features @ y.T)
        fit = -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))
        return fit + 0.5 * ridge * jnp.sum(y**2)

    return minimiser(loss, start, (*data, ridge))
