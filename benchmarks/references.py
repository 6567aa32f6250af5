"""What the real tasks are compared with: models trained to the end on pooled data."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from benchmarks.fitting import minimiser, softmax
from benchmarks.task_list import METRICS, Case
from fedbilevel.mathematics import tree
from fedbilevel.problems import LabelledTable

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
PENALTIES = tuple(10.0**-k for k in range(8))


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
    models = [softmax(zero, tables, ridge) for ridge in RIDGES]
    losses = [float(problem.upper_loss(case.task.x, y, case.selection)) for y in models]
    best = int(np.argmin(losses))
    if not selection:
        return models[best]
    return softmax(zero, [*tables, case.selection], RIDGES[best])


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
