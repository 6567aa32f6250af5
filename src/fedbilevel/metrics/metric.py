"""A metric of a run, and the point at which it is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.mathematics.problem import BilevelProblem, Loss, Lower, Upper
from fedbilevel.metrics.full_data import FullData, full_data, full_data_problem
from fedbilevel.metrics.reference import Reference, newton_reference

BLOCK = 4096
"""The number of examples evaluated at once."""


@dataclass(frozen=True, eq=False)
class FullProblem:
    """A problem on the data of all devices, compiled once for many points.

    Attributes:
        problem: the two losses.
        devices: data of all devices, loaded at once.
        weights: weights of the devices, as for `run`.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> full = FullProblem(task.problem, task.devices)
        >>> full.upper_loss(task.x, task.y) > 0
        True
    """

    problem: BilevelProblem
    devices: Devices
    weights: Weighting = None

    @cached_property
    def upper_loss(self) -> Callable[[Upper, Lower], float]:
        """F(x, y) = Σ_k w_k f_k(x, y), in double precision if x and y are."""
        return _on(self._data[0], full_data_problem(self.problem).upper_loss)

    @cached_property
    def lower_loss(self) -> Callable[[Upper, Lower], float]:
        """G(x, y) = Σ_k w_k g_k(x, y)."""
        return _on(self._data[1], full_data_problem(self.problem).lower_loss)

    @cached_property
    def reference(self) -> Reference:
        """The functions that solve for y*(x) and ∇Φ(x)."""
        return newton_reference(self.problem, self.devices, weights=self.weights)

    @cached_property
    def _data(self) -> tuple[FullData, FullData]:
        return full_data(self.devices, self.weights, BLOCK)


def _on(data: FullData, loss: Loss) -> Callable[[Upper, Lower], float]:
    compiled = jax.jit(loss)
    return lambda x, y: float(compiled(x, y, data))


@dataclass(frozen=True, eq=False)
class Point:
    """A point (x, y) of a run, with the problem, for metrics.

    Attributes:
        x: upper variable.
        y: lower variable.
        full: the problem on the data of all devices.
    """

    x: Upper
    y: Lower
    full: FullProblem

    @cached_property
    def solution(self) -> Lower:
        """y*(x), solved once for all metrics of the point."""
        return self.full.reference.lower_solution(self.x, self.y)


class Metric(NamedTuple):
    """A metric that runs measure.

    Attributes:
        name: name in records, experiment files and options.
        title: title in text and plots.
        is_slow: whether it takes longer than both losses, so that a run measures it
            only if its file names it.
        function: function that returns the metric of a point; NaN if it has none. A
            metric that was finite and is NaN at the end counts as divergence.

    Example:
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> size = Metric("size", "‖y‖²", False, lambda point: float(point.y @ point.y))
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> full = FullProblem(task.problem, task.devices)
        >>> size.function(Point(task.x, task.y, full))
        0.0
    """

    name: str
    title: str
    is_slow: bool
    function: Callable[[Point], float]
