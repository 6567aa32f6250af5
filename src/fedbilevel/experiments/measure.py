"""What is measured of a run as it goes."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.engines.loss_checks import NOT_FINITE
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.full_data import full_data, full_data_problem
from fedbilevel.metrics.reference import newton_reference
from fedbilevel.metrics.stationarity import stationarity
from fedbilevel.problems.task import Metric, Task
from fedbilevel.tracking.titles import title_of

BLOCK = 4096


def measurements(
    task: Task,
    weights: Int[np.ndarray, "devices"] | None,
    with_stationarity: bool,
) -> Callable[[Upper, Lower], dict[str, float]]:
    """Return what measures x and y: both losses over all data, and a task's metrics.

    Args:
        task: of the run.
        weights: of its devices, as given to `run`.
        with_stationarity: whether to solve for y*(x) too.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> sorted(measurements(task, None, False)(task.x, task.y))
        ['distance', 'loss', 'training_loss']
    """
    upper, lower = full_data(task.devices, weights, BLOCK)
    whole = full_data_problem(task.problem)
    upper_loss, lower_loss = map(jax.jit, (whole.upper_loss, whole.lower_loss))
    reference, metrics = None, metrics_of(task.metrics)
    if with_stationarity:
        reference = newton_reference(task.problem, task.devices, weights=weights)

    def measure(x: Upper, y: Lower) -> dict[str, float]:
        figures = {
            "loss": float(upper_loss(x, y, upper)),
            "training_loss": float(lower_loss(x, y, lower)),
            **metrics(x, y),
        }
        if reference is not None:
            found = stationarity(reference, x, y)
            figures["hypergradient"] = found.hypergradient
            figures["lower_error"] = found.lower_error
        return figures

    return measure


def measured_start(
    measure: Callable[[Upper, Lower], Mapping[str, float]], x: Upper, y: Lower
) -> Mapping[str, float] | None:
    """Measure a start before any round; refuse losses that are not finite there.

    A metric of a task may be undefined at the start. None if the numbers end the
    measurement by an error: a run raises it again, and records it as its failure.

    Raises:
        ValueError: if a loss is not finite.

    Example:
        >>> measured_start(lambda x, y: {"loss": x + y}, 1.0, 2.0)
        {'loss': 3.0}
    """
    try:
        figures = measure(x, y)
    except ArithmeticError:
        return None
    for figure, loss in (("loss", "upper_loss"), ("training_loss", "lower_loss")):
        value = figures.get(figure, 0.0)
        if not isfinite(value):
            raise ValueError(
                f"the {title_of(figure)} ({loss} on the examples of all devices) is "
                f"{value} at the start. {NOT_FINITE}"
            )
    return figures


def metrics_of(
    metrics: Mapping[str, Metric],
) -> Callable[[Upper, Lower], dict[str, float]]:
    """Return what measures x and y by a task's metrics alone.

    Example:
        >>> metrics_of({"sum": lambda x, y: x + y})(1.0, 2.0)
        {'sum': 3.0}
    """
    return lambda x, y: {
        name: _number(name, metric(x, y)) for name, metric in metrics.items()
    }


def _number(name: str, value: Any) -> float:
    try:
        if not np.shape(value):
            return float(value)
        what = f"an array of shape {np.shape(value)}"
    except (TypeError, ValueError, OverflowError):
        # Lists of unequal lengths, words, None: whatever a file returns.
        what = f"a {type(value).__name__}"
    raise ValueError(f"the metric {name} returned {what}; return one number.")
