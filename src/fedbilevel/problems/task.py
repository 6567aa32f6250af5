"""A ready-made problem: losses, data, initial point and metrics."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


@runtime_checkable
class TaskMetric(Protocol):
    """A metric of a task, such as the accuracy on test examples."""

    def __call__(self, x: Upper, y: Lower, /) -> float:
        """Return the metric at (x, y)."""


class Task(NamedTuple):
    """All arguments of `run` except the algorithm, and metrics of its result.

    Attributes:
        problem: the two losses.
        devices: examples of each device.
        x: initial upper variable.
        y: initial lower variable.
        metrics: metrics by name, computed on the server from its arrays.

    Example:
        >>> from fedbilevel import ConjugateGradient, LocalBSGM, run
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> algorithm = LocalBSGM(
        ...     learning_rate=0.2,
        ...     hypergradient=ConjugateGradient(),
        ...     upper_mixing=5.0,
        ...     lower_mixing=5.0,
        ... )
        >>> *_, last = run(
        ...     task.problem, algorithm, task.devices, task.x, task.y, rounds=100
        ... )
        >>> task.metrics["distance"](task.x, task.y) > 0.1
        True
        >>> task.metrics["distance"](last.x, last.y) < 1e-3
        True
    """

    problem: BilevelProblem
    devices: InMemoryDevices
    x: Upper
    y: Lower
    metrics: Mapping[str, TaskMetric]


class Model(NamedTuple):
    """A task without its examples, for the server of a federation.

    Attributes:
        problem: the two losses.
        x: initial upper variable.
        y: initial lower variable.
        metrics: metrics by name, computed on the server from its arrays.
        form: examples with the structure, shapes and dtypes of every site's; their
            number and values are ignored.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> sorted(Model.of(task).metrics)
        ['distance']
    """

    problem: BilevelProblem
    x: Upper
    y: Lower
    metrics: Mapping[str, TaskMetric]
    form: LocalExamples

    @classmethod
    def of(cls, task: Task) -> "Model":
        """Return the model of a task with local examples."""
        # A device may lack a level.
        upper, lower = (
            task.devices.local(int(np.flatnonzero(sizes)[0]))
            for sizes in (task.devices.upper_sizes, task.devices.lower_sizes)
        )
        form = LocalExamples(upper.upper, lower.lower)
        return cls(task.problem, task.x, task.y, task.metrics, form)
