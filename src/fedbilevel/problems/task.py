"""A ready-made problem: losses, data, where to start, and what to look at."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


@runtime_checkable
class Metric(Protocol):
    """What a person cares about at a point, such as the accuracy on test examples."""

    def __call__(self, x: Upper, y: Lower, /) -> float:
        """Return the figure at (x, y)."""


class Task(NamedTuple):
    """All that `run` needs besides an algorithm, and how to judge what it finds.

    Attributes:
        problem: the two losses.
        devices: the examples that each device holds.
        x: where the upper variable starts.
        y: where the lower variable starts.
        metrics: figures by name, computed on the server from arrays that it holds.

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
        >>> *_, done = run(
        ...     task.problem, algorithm, task.devices, task.x, task.y, rounds=100
        ... )
        >>> task.metrics["distance"](task.x, task.y) > 0.1
        True
        >>> task.metrics["distance"](done.x, done.y) < 1e-3
        True
    """

    problem: BilevelProblem
    devices: InMemoryDevices
    x: Upper
    y: Lower
    metrics: Mapping[str, Metric]


class Model(NamedTuple):
    """What the server of a federation has of a task: all but the examples.

    Attributes:
        problem: the two losses.
        x: where the upper variable starts.
        y: where the lower variable starts.
        metrics: figures by name, computed on the server from arrays that it holds.
        form: examples such as every site holds; how many, and which, does not matter.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> sorted(Model.of(task).metrics)
        ['distance']
    """

    problem: BilevelProblem
    x: Upper
    y: Lower
    metrics: Mapping[str, Metric]
    form: LocalExamples

    @classmethod
    def of(cls, task: Task) -> "Model":
        """Return the model of a task whose examples are here."""
        form = task.devices.local(0)
        return cls(task.problem, task.x, task.y, task.metrics, form)
