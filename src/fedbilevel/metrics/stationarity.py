"""The paper's measure of the distance of a point from a solution."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Lower, Upper
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
    gradient = reference.hypergradient(x, solution)
    with jax.enable_x64(True):
        error = jax.tree.map(
            lambda a, b: jnp.asarray(a, float) - jnp.asarray(b, float), y, solution
        )
        squares = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), gradient)
        return Stationarity(
            float(tree.squared_norm(squares)), float(tree.squared_norm(error))
        )
