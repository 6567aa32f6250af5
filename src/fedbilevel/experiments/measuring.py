"""What is measured of a run as it goes."""

from collections.abc import Callable

import jax

from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.full_data import full_data, full_data_problem
from fedbilevel.metrics.reference import newton_reference
from fedbilevel.metrics.stationarity import stationarity
from fedbilevel.problems.task import Task

BLOCK = 4096


def measurements(
    task: Task, with_stationarity: bool
) -> Callable[[Upper, Lower], dict[str, float]]:
    """Return what measures x and y: both losses over all data, and a task's metrics.

    Args:
        task: of the run.
        with_stationarity: whether to solve for y*(x) too.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> sorted(measurements(task, with_stationarity=False)(task.x, task.y))
        ['distance', 'loss', 'training_loss']
    """
    upper, lower = full_data(task.devices, None, BLOCK)
    whole = full_data_problem(task.problem)
    upper_loss, lower_loss = map(jax.jit, (whole.upper_loss, whole.lower_loss))
    reference = None
    if with_stationarity:
        reference = newton_reference(task.problem, task.devices)

    def measure(x: Upper, y: Lower) -> dict[str, float]:
        figures = {
            "loss": float(upper_loss(x, y, upper)),
            "training_loss": float(lower_loss(x, y, lower)),
            **{name: float(metric(x, y)) for name, metric in task.metrics.items()},
        }
        if reference is not None:
            found = stationarity(reference, x, y)
            figures["hypergradient"] = found.hypergradient
            figures["lower_error"] = found.lower_error
        return figures

    return measure
