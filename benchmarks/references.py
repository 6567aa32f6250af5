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
    """Return the metric of each reference that makes sense for the task.

    A reference has the best of several ridges by the test examples themselves: an
    advantage that no contender has.
    """
    task, split = case.task, case.split
    metric = task.metrics[METRICS[name]]
    clean = [split.validation, case.selection]

    def best(*tables: LabelledTable) -> float:
        models = (softmax(task.y, list(tables), ridge) for ridge in RIDGES)
        return max(metric(task.x, y) for y in models)

    if name.startswith("representation"):
        return {
            "no tuning": metric(task.x, retrained(case, task.x)),
            "validation data alone": metric(*_whole_network(case)),
        }
    if name.startswith("regularisation"):
        return {
            "no tuning": metric(task.x, retrained(case, task.x)),
            "best of 8 single penalties": _best_penalty(case),
            "validation data alone": best(*clean),
        }
    found = {
        "no tuning": best(split.training),
        "validation data alone": best(*clean),
        "training and validation data": best(split.training, *clean),
    }
    if case.clean is not None:
        found["clean labels"] = best(case.clean)
    return found


def _best_penalty(case: Case) -> float:
    task = case.task
    grid = (jnp.full_like(task.x, np.log(penalty)) for penalty in PENALTIES)
    return max(task.metrics["accuracy"](x, retrained(case, x)) for x in grid)


def _whole_network(case: Case) -> tuple[PyTree, PyTree]:
    task = case.task
    upper = task.devices.pooled.upper

    def loss(both: tuple[PyTree, PyTree], data: PyTree) -> Float[Array, ""]:
        x, y = both
        penalty = 0.5 * case.ridge * tree.squared_norm(y)
        return task.problem.upper_loss(x, y, data) + penalty

    x, y = minimiser(loss, (task.x, task.y), upper)
    return x, y
