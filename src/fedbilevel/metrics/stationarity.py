"""The paper's measure of the distance of a point from a solution."""

from typing import NamedTuple

import jax

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import in_double
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.metrics.metric import Metric
from fedbilevel.metrics.reference import Reference


class Stationarity(NamedTuple):
    """‖∇Φ(x)‖² and ‖y − y*(x)‖², whose weighted sum the paper's theorems bound.

    Attributes:
        hypergradient: ‖∇Φ(x)‖².
        lower_error: ‖y − y*(x)‖².

    Example:
        >>> Stationarity(hypergradient=1.0, lower_error=0.5).total(2.0)
        3.0
    """

    hypergradient: float
    lower_error: float

    def total(self, lower_error_factor: float) -> float:
        """Return ‖∇Φ(x)‖² + L̃² ‖y − y*(x)‖².

        Args:
            lower_error_factor: L̃, as `theory.lower_error_factor` computes it.

        Example:
            >>> Stationarity(1.0, 0.0).total(5.0)
            1.0
        """
        return self.hypergradient + lower_error_factor**2 * self.lower_error


def stationarity(reference: Reference, x: Upper, y: Lower) -> Stationarity:
    """Return the measure at a point. The paper averages it over the steps of a run.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.metrics import Reference, stationarity
        >>> reference = Reference(
        ...     lower_solution=lambda x, near: x,
        ...     hypergradient=lambda x, near: 2 * (x - 1),
        ... )
        >>> stationarity(reference, jnp.array(3.0), jnp.array(2.0))
        Stationarity(hypergradient=16.0, lower_error=1.0)
    """
    solution = reference.lower_solution(x, y)
    return Stationarity(
        _squared_norm(reference.hypergradient(x, solution)),
        _squared_distance(y, solution),
    )


def _squared_norm(gradient: Upper) -> float:
    with jax.enable_x64(True):
        return float(tree.squared_norm(in_double(gradient)))


def _squared_distance(y: Lower, solution: Lower) -> float:
    with jax.enable_x64(True):
        difference = tree.subtract(in_double(y), in_double(solution))
        return float(tree.squared_norm(difference))


HYPERGRADIENT = Metric(
    "hypergradient",
    "‖∇Φ(x)‖²",
    is_slow=True,
    function=lambda point: _squared_norm(
        point.full.reference.hypergradient(point.x, point.solution)
    ),
)
LOWER_ERROR = Metric(
    "lower_error",
    "‖y − y*(x)‖²",
    is_slow=True,
    function=lambda point: _squared_distance(point.y, point.solution),
)
