"""The metrics of a run: both losses, a task's metrics, and stationarity."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.engines.loss_checks import NOT_FINITE
from fedbilevel.error_text import first_line, place_in
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
    """Return a function that measures both losses over all data and a task's metrics.

    Args:
        task: task of the run.
        weights: weights of its devices, as passed to `run`.
        with_stationarity: whether to solve for y*(x) and measure the stationarity.

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
        metric_values = {
            "loss": float(upper_loss(x, y, upper)),
            "training_loss": float(lower_loss(x, y, lower)),
            **metrics(x, y),
        }
        if reference is not None:
            result = stationarity(reference, x, y)
            metric_values["hypergradient"] = result.hypergradient
            metric_values["lower_error"] = result.lower_error
        return metric_values

    return measure


def measure_start(
    measure: Callable[[Upper, Lower], Mapping[str, float]], x: Upper, y: Lower
) -> Mapping[str, float] | None:
    """Return the metrics of the starting point; raise an error for an infinite loss.

    A metric of a task may be undefined at the start. None if the measurement raises an
    ArithmeticError: the run raises it again, and records it as its failure.

    Raises:
        ValueError: if a loss is NaN or infinite.

    Example:
        >>> measure_start(lambda x, y: {"loss": x + y}, 1.0, 2.0)
        {'loss': 3.0}
    """
    try:
        metric_values = measure(x, y)
    except ArithmeticError:
        return None
    for name, loss in (("loss", "upper_loss"), ("training_loss", "lower_loss")):
        value = metric_values.get(name, 0.0)
        if not isfinite(value):
            raise ValueError(
                f"The {title_of(name)} ({loss} on the examples of all devices) is "
                f"{value} at the start. {NOT_FINITE}"
            )
    return metric_values


def metrics_of(
    metrics: Mapping[str, Metric],
) -> Callable[[Upper, Lower], dict[str, float]]:
    """Return a function that measures only the metrics of a task.

    Example:
        >>> metrics_of({"sum": lambda x, y: x + y})(1.0, 2.0)
        {'sum': 3.0}
    """
    return lambda x, y: {
        name: _measure(name, metric, x, y) for name, metric in metrics.items()
    }


def _measure(name: str, metric: Metric, x: Upper, y: Lower) -> float:
    try:
        value = metric(x, y)
    except (ArithmeticError, MemoryError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"Metric {name!r} of the task failed{place_in(error, metric)}: "
            f"{type(error).__name__}: {first_line(error).rstrip('. ')}. Correct the "
            "metric; for the traceback, set FEDBILEVEL_DEBUG=1."
        ) from error
    return _number(name, value)


def _number(name: str, value: Any) -> float:
    try:
        if not np.shape(value):
            return float(value)
        result = f"an array of shape {np.shape(value)}"
    except (TypeError, ValueError, OverflowError):
        # A problem file may return anything, such as text or lists of unequal lengths.
        result = f"a {type(value).__name__}"
    raise ValueError(
        f"Metric {name!r} of the task returned {result}; return one real number."
    )
