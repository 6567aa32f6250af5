"""What the real tasks are compared with: models trained to the end on pooled data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.optimize import minimize

from benchmarks.task_list import METRICS, Case
from fedbilevel.mathematics import tree
from fedbilevel.problems import LabelledTable

ITERATIONS = 300
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
PENALTIES = tuple(10.0**-k for k in range(8))


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


def retrained(case: Case, x: PyTree) -> PyTree:
    """Return y*(x) on all devices' training examples."""
    task = case.task
    lower = task.devices.pooled.lower

    def loss(y: PyTree, data: tuple[PyTree, PyTree]) -> Float[Array, ""]:
        return task.problem.lower_loss(data[0], y, data[1])

    return minimiser(loss, task.y, (x, lower))


def references(name: str, case: Case) -> dict[str, float]:
    """Return the metric of each reference that makes sense for the task."""
    task, split = case.task, case.split
    metric = task.metrics[METRICS[name]]
    if name.startswith("regularisation"):
        return {
            "no tuning": metric(task.x, retrained(case, task.x)),
            "best of 8 single penalties": _best_penalty(case),
            "validation data alone": metric(task.x, _softmax(case, [split.validation])),
        }
    if name.startswith("representation"):
        return {
            "no tuning": metric(task.x, retrained(case, task.x)),
            "validation data alone": metric(*_whole_network(case)),
        }
    found = {
        "training data alone": _softmax(case, [split.training], selection=False),
        "validation data alone": _softmax(case, [split.validation]),
        "training and validation data": _softmax(
            case, [split.training, split.validation]
        ),
    }
    if case.clean is not None:
        found["clean labels"] = _softmax(case, [case.clean], selection=False)
    return {name: metric(task.x, y) for name, y in found.items()}


def _softmax(case: Case, tables: list[LabelledTable], selection: bool = True) -> PyTree:
    """Train on the tables, with the ridge that does best on the selection examples.

    With `selection`, these are clean data like the others' in the end: it is trained
    anew with them.
    """
    problem, zero = case.task.problem, case.task.y
    models = [_fitted(zero, tables, ridge) for ridge in RIDGES]
    losses = [float(problem.upper_loss(case.task.x, y, case.selection)) for y in models]
    best = int(np.argmin(losses))
    if not selection:
        return models[best]
    return _fitted(zero, [*tables, case.selection], RIDGES[best])


def _fitted(start: PyTree, tables: list[LabelledTable], ridge: float) -> PyTree:
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


def _best_penalty(case: Case) -> float:
    task = case.task
    losses, metrics = [], []
    for penalty in PENALTIES:
        x = jnp.full_like(task.x, np.log(penalty))
        y = retrained(case, x)
        losses.append(float(task.problem.upper_loss(x, y, case.selection)))
        metrics.append(task.metrics["accuracy"](x, y))
    return metrics[int(np.argmin(losses))]


def _whole_network(case: Case) -> tuple[PyTree, PyTree]:
    task = case.task
    upper = task.devices.pooled.upper

    def loss(both: tuple[PyTree, PyTree], data: PyTree) -> Float[Array, ""]:
        x, y = both
        penalty = 0.5 * case.ridge * tree.squared_norm(y)
        return task.problem.upper_loss(x, y, data) + penalty

    x, y = minimiser(loss, (task.x, task.y), upper)
    return x, y
