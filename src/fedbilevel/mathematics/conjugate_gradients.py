"""Conjugate gradients in single iterations, for traced or federated products.

`jax.scipy.sparse.linalg.cg` needs a traced product and returns the solution alone. Here
each product may be an exchange with all devices, and the iteration also measures the
curvature along its directions, for an error bound and for a convexity check.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel.mathematics import tree

FLAT = 1e-14
"""Curvature below this fraction of the largest has no sign, because of rounding."""


class Solve(NamedTuple):
    """The state of a solve of H z = b after some products with H.

    Attributes:
        solution: z.
        residual: b − Hz by the recursion, which drifts from the true residual.
        direction: vector for the next product.
        squared: squared norm of the residual.
        goal: squared norm of the residual at which the solve has converged.
        inverse_bound: sum of ‖p‖² / pᵀHp over the directions p so far: the trace of
            the inverse of Lanczos' matrix, which is at least the largest eigenvalue of
            H⁻¹ on the subspace of these directions.
        lowest: smallest curvature pᵀHp / ‖p‖² so far.
        highest: largest curvature so far.
        products: number of products so far.

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
        """True if all curvature so far was above zero, up to rounding."""
        return self.lowest > FLAT * self.highest

    @property
    def converged(self) -> Array:
        """True if the residual is within the tolerance."""
        return self.squared <= self.goal


def begin(right: PyTree, tolerance: tree.Scalar) -> Solve:
    """Return the state before the first product, with z = 0.

    Args:
        right: b.
        tolerance: residual at which the solve has converged, relative to b.

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

    If the curvature along the direction is not above zero, the solution is unchanged.

    Args:
        state: state before the iteration.
        product: H times `state.direction`.

    Example:
        >>> import jax.numpy as jnp
        >>> state = begin(jnp.array([3.0]), tolerance=1e-6)
        >>> float(advance(state, 6 * state.direction).solution[0])
        0.5
    """
    length = tree.squared_norm(state.direction)
    energy = tree.inner(state.direction, product)
    curvature = energy / length
    highest = jnp.maximum(state.highest, curvature)
    convex = curvature > FLAT * highest
    alpha = jnp.where(convex, state.squared / jnp.where(convex, energy, 1), 0)
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
    """Solve H z = b with a traceable product.

    Args:
        product: function from a vector to H times the vector.
        right: b.
        tolerance: residual at which the solve stops, relative to b.
        limit: largest number of products.

    Example:
        >>> import jax.numpy as jnp
        >>> state = solve(lambda v: jnp.array([1.0, 4.0]) * v, jnp.ones(2), 1e-6, 9)
        >>> state.solution, int(state.products)
        (Array([1.  , 0.25], dtype=float32), 2)
    """
    return jax.lax.while_loop(
        lambda state: ~state.converged & (state.products < limit) & state.convex,
        lambda state: advance(state, product(state.direction)),
        begin(right, tolerance),
    )


def products_needed(state: Solve) -> Float[Array, ""]:
    """Return an estimate of all products that an unfinished solve needs.

    It assumes the guaranteed rate of conjugate gradients for the condition number κ
    measured so far: n products multiply the residual by at most 2 exp(−2n / √κ).

    Args:
        state: state of the unfinished solve.

    Example:
        >>> import jax.numpy as jnp
        >>> state = begin(jnp.ones(1), tolerance=1e-8)._replace(
        ...     inverse_bound=jnp.array(100.0), highest=jnp.array(1.0)
        ... )
        >>> round(float(products_needed(state)))
        96
    """
    condition = jnp.maximum(1.0, state.highest * state.inverse_bound)
    ratio = jnp.sqrt(state.squared / jnp.where(state.goal > 0, state.goal, 1))
    reduction = jnp.log(jnp.maximum(1.0, 2 * ratio))
    more = jnp.ceil(0.5 * jnp.sqrt(condition) * reduction)
    return state.products.astype(more.dtype) + more
