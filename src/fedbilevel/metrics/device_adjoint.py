"""A device's local adjoint, with an error bound from its Hessian products."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedbilevel.mathematics import conjugate_gradients, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import Lower, Upper

PROBES = 4
"""Number of random vectors that estimate the norm of a mixed derivative."""
PROBE_RESIDUAL = 1e-3
"""Relative residual of the solve for a random vector, which detects small curvature."""


class DeviceSolves(NamedTuple):
    """Reports of the devices about their local solves; each field is a mean.

    Attributes:
        indirect: J_k z_k, where z_k ≈ H_k⁻¹ b_k.
        error: bound of ‖J_k H_k⁻¹ r_k‖, where r_k = b_k − H_k z_k was measured by a
            separate product.
        residual: ‖r_k‖ / ‖b_k‖.
        unfinished: 1 for a device that reached the limit of products, 0 otherwise.
        needed: products that an unfinished device needs, 0 otherwise.
        not_convex: 1 for a device with curvature not above zero, 0 otherwise.
        curvature: smallest curvature of a device that is not convex, 0 otherwise.
    """

    indirect: Upper
    error: Float[Array, ""]
    residual: Float[Array, ""]
    unfinished: Float[Array, ""]
    needed: Float[Array, ""]
    not_convex: Float[Array, ""]
    curvature: Float[Array, ""]


def solve_adjoint(
    hessian: Callable[[Lower], Lower],
    mixed: Callable[[Lower], Upper],
    right: Lower,
    probes: Lower,
    limit: Int[Array, ""],
    tolerance: tree.Scalar,
) -> DeviceSolves:
    """Return one device's report about its local solve of H_k z_k = b_k.

    Args:
        hessian: function from a vector to H_k times the vector.
        mixed: function from a vector to J_k times the vector.
        right: b_k.
        probes: `PROBES` random vectors of signs, stacked.
        limit: largest number of Hessian products.
        tolerance: residual at which the solve has converged, relative to b_k.

    Example:
        >>> import jax.numpy as jnp
        >>> probes = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        >>> report = solve_adjoint(
        ...     lambda v: jnp.array([1.0, 4.0]) * v,
        ...     lambda v: -v,
        ...     jnp.ones(2),
        ...     probes,
        ...     limit=jnp.array(9),
        ...     tolerance=jnp.array(1e-6),
        ... )
        >>> report.indirect, float(report.unfinished)
        (Array([-1.  , -0.25], dtype=float32), 0.0)
    """

    def with_probes(vector: Lower, count: int) -> Lower:
        return jax.tree.map(
            lambda leaf, more: jnp.concatenate([leaf[None], more[:count]]),
            vector,
            probes,
        )

    # A second solve, for a random vector, measures curvature in directions orthogonal
    # to b_k, so that the error bound includes them.
    solves = jax.vmap(
        lambda right, tolerance: conjugate_gradients.solve(
            hessian, right, tolerance, limit
        )
    )(with_probes(right, 1), jnp.stack([tolerance, 0 * tolerance + PROBE_RESIDUAL]))
    z = jax.tree.map(lambda leaf: leaf[0], solves.solution)
    # The recursion's residual drifts from the true residual, which is measured here.
    rest = tree.squared_norm(tree.subtract(right, hessian(z)))
    squared, whole = jnp.maximum(rest, solves.squared[0]), tree.squared_norm(right)
    # One loop for all vectors, because every product in the program is large.
    images = jax.lax.map(mixed, with_probes(z, PROBES))
    # Random signs v have E ‖Jv‖² = ‖J‖², the Frobenius norm (Hutchinson).
    size = jnp.sqrt(jnp.mean(jax.vmap(tree.squared_norm)(images)[1:]))
    convex = jnp.all(solves.convex)
    unfinished = convex & ~jnp.all(solves.converged)
    needed = jnp.max(jax.vmap(conjugate_gradients.products_needed)(solves))
    return DeviceSolves(
        indirect=jax.tree.map(lambda leaf: leaf[0], images),
        error=size * jnp.max(solves.inverse_bound) * jnp.sqrt(squared),
        residual=jnp.sqrt(squared / jnp.where(whole > 0, whole, 1)),
        unfinished=jnp.where(unfinished, 1.0, 0.0),
        needed=jnp.where(unfinished, needed, 0.0),
        not_convex=jnp.where(convex, 0.0, 1.0),
        curvature=jnp.where(convex, 0.0, jnp.min(solves.lowest)),
    )
