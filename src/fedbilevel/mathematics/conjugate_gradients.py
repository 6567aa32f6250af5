"""Conjugate gradients in single iterations, for products from anywhere.

`jax.scipy.sparse.linalg.cg` needs a traced product and returns the solution alone. Here
each product may be an exchange with all devices, and the iteration also measures what
its error bound and its failure depend on: the curvature that it has met.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.mathematics import tree

FLAT = 1e-14
"""The part of the largest curvature below which rounding hides the sign of another."""


class Solve(NamedTuple):
    """The state of a solve of H z = b after some products with H.

    Attributes:
        solution: z.
        residual: b − Hz by the recursion, which drifts from the true one.
        direction: the vector that the next product is wanted of.
        squared: the squared norm of the residual.
        goal: the squared norm at which the solve is done.
        inverse_bound: the sum of ‖p‖² / pᵀHp over the directions p so far: the trace of
            the inverse of Lanczos' matrix, which is at least the largest eigenvalue of
            H⁻¹ on the subspace that the solve has seen.
        lowest: the smallest curvature pᵀHp / ‖p‖² so far.
        highest: the largest curvature so far.
        products: how many products were used.

    Example:
        >>> import jax.numpy as jnp
        >>> begin(jnp.array([3.0, 4.0]), tolerance=1e-6).squared
        Array(25., dtype=float32)
    """

    solution: PyTree
    residual: PyTree
    direction: PyTree
    squared: Float[Array, ""]
    goal: Float[Array, ""]
    inverse_bound: Float[Array, ""]
    lowest: Float[Array, ""]
    highest: Float[Array, ""]
    products: Int[Array, ""]

    @property
    def convex(self) -> Array:
        """Whether all curvature so far was above zero, rounding apart."""
        return self.lowest > FLAT * self.highest

    @property
    def converged(self) -> Array:
        """Whether the residual is as small as was asked for."""
        return self.squared <= self.goal


def begin(right: PyTree, tolerance: tree.Scalar) -> Solve:
    """Return the state before the first product, with z = 0.

    Args:
        right: b.
        tolerance: the residual at which the solve is done, relative to b.

    Example:
        >>> import jax.numpy as jnp
        >>> int(begin(jnp.ones(2), tolerance=1e-6).products)
        0
    """
    squared = tree.squared_norm(right)
    zero = jnp.zeros_like(squared)
    return Solve(
        solution=tree.scale(0.0, right),
        residual=right,
        direction=right,
        squared=squared,
        goal=squared * tolerance**2,
        inverse_bound=zero,
        lowest=zero + jnp.inf,
        highest=zero,
        products=jnp.array(0, jnp.int32),
    )


def advance(state: Solve, product: PyTree) -> Solve:
    """Return the state after one iteration of Hestenes and Stiefel's method.

    Where the direction has no curvature above zero, the solution stays as it is.

    Args:
        state: before the iteration.
        product: H times `state.direction`.

    Example:
        >>> import jax.numpy as jnp
        >>> state = begin(jnp.array([3.0]), tolerance=1e-6)
        >>> float(advance(state, 6 * state.direction).solution[0])
        0.5
    """
    length = tree.squared_norm(state.direction)
    curved = tree.inner(state.direction, product)
    curvature = curved / length
    highest = jnp.maximum(state.highest, curvature)
    convex = curvature > FLAT * highest
    alpha = jnp.where(convex, state.squared / jnp.where(convex, curved, 1), 0)
    residual = tree.add_scaled(state.residual, -alpha, product)
    squared = tree.squared_norm(residual)
    beta = jnp.where(convex, squared / state.squared, 0)
    return state._replace(
        solution=tree.add_scaled(state.solution, alpha, state.direction),
        residual=residual,
        direction=tree.add_scaled(residual, beta, state.direction),
        squared=squared,
        # The p are conjugate, so that this sum is the trace of Lanczos' T⁻¹.
        inverse_bound=state.inverse_bound
        + jnp.where(convex, 1 / jnp.where(convex, curvature, 1), 0),
        lowest=jnp.minimum(state.lowest, curvature),
        highest=highest,
        products=state.products + 1,
    )


def solve(
    product: Callable[[PyTree], PyTree],
    right: PyTree,
    tolerance: tree.Scalar,
    limit: int | Int[Array, ""],
) -> Solve:
    """Solve H z = b where the product can be traced.

    Args:
        product: of H and a vector.
        right: b.
        tolerance: stop when the residual is this small relative to b.
        limit: the most products to use.

    Example:
        >>> import jax.numpy as jnp
        >>> found = solve(lambda v: jnp.array([1.0, 4.0]) * v, jnp.ones(2), 1e-6, 9)
        >>> found.solution, int(found.products)
        (Array([1.  , 0.25], dtype=float32), 2)
    """
    return jax.lax.while_loop(
        lambda state: ~state.converged & (state.products < limit) & state.convex,
        lambda state: advance(state, product(state.direction)),
        begin(right, tolerance),
    )


def products_needed(state: Solve) -> Float[Array, ""]:
    """Return about how many products a solve takes in all, from one cut short.

    The residual falls from where it is at the rate that conjugate gradients have at
    least for the condition number seen so far: 2 exp(−2n / √κ) after n products.

    Args:
        state: of the solve that was cut short.

    Example:
        >>> import jax.numpy as jnp
        >>> state = begin(jnp.ones(1), tolerance=1e-8)._replace(
        ...     inverse_bound=jnp.array(100.0), highest=jnp.array(1.0)
        ... )
        >>> round(float(products_needed(state)))
        96
    """
    condition = jnp.maximum(1.0, state.highest * state.inverse_bound)
    left = jnp.sqrt(state.squared / jnp.where(state.goal > 0, state.goal, 1))
    reduction = jnp.log(jnp.maximum(1.0, 2 * left))
    more = jnp.ceil(0.5 * jnp.sqrt(condition) * reduction)
    return state.products.astype(more.dtype) + more
