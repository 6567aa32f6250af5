"""The metrics of a run: both losses, a task's metrics, and those that a file names."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from fedbilevel.data.weights import Weighting
from fedbilevel.engines.loss_checks import NOT_FINITE
from fedbilevel.error_text import first_line, place_in
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.losses import LOSS, TRAINING_LOSS
from fedbilevel.metrics.metric import FullProblem, Point
from fedbilevel.metrics.registry import ALWAYS, find_metric
from fedbilevel.problems.task import Task, TaskMetric


def measurements(
    task: Task,
    weights: Weighting,
    names: Sequence[str] = (),
) -> Callable[[Upper, Lower], dict[str, float]]:
    """Return a function that measures both losses, a task's metrics, and others.

    Args:
        task: task of the run.
        weights: weights of its devices, as passed to `run`.
        names: names of other metrics.

    Raises:
        ValueError: if a name is unknown, or two metrics have one name.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> list(measurements(task, None)(task.x, task.y))
        ['loss', 'training_loss', 'distance']
    """
    full = FullProblem(task.problem, task.devices, weights)
    named = list(map(find_metric, names))
    taken = {metric.name for metric in ALWAYS}
    for owner, new in (
        ("the task", list(task.metrics)),
        ("evaluation.metrics", [metric.name for metric in named]),
    ):
        for name in new:
            if name in taken:
                raise ValueError(
                    f"metrics of {owner}: {name} is taken. Rename it, or remove it "
                    "from evaluation.metrics."
                )
            taken.add(name)

    def measure(x: Upper, y: Lower) -> dict[str, float]:
        point = Point(x, y, full)
        return {
            **{m.name: _number(m.name, m.function(point)) for m in ALWAYS},
            **metrics_of(task.metrics)(x, y),
            **{m.name: _measure(m.name, m.function, point) for m in named},
        }

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
    for metric, loss in ((LOSS, "upper_loss"), (TRAINING_LOSS, "lower_loss")):
        value = metric_values.get(metric.name, 0.0)
        if not isfinite(value):
            raise ValueError(
                f"The {metric.title} ({loss} on the examples of all devices) is "
                f"{value} at the start. {NOT_FINITE}"
            )
    return metric_values


def metrics_of(
    metrics: Mapping[str, TaskMetric],
) -> Callable[[Upper, Lower], dict[str, float]]:
    """Return a function that measures only the metrics of a task.

    Example:
        >>> metrics_of({"sum": lambda x, y: x + y})(1.0, 2.0)
        {'sum': 3.0}
    """
    return lambda x, y: {
        name: _measure(name, metric, x, y) for name, metric in metrics.items()
    }


def _measure(name: str, metric: Callable[..., Any], *point: Any) -> float:
    try:
        value = metric(*point)
    except (ArithmeticError, MemoryError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"Metric {name!r} failed{place_in(error, metric)}: "
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
    raise ValueError(f"Metric {name!r} returned {result}; return one real number.")
