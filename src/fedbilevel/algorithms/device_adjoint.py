"""A device's own adjoint, with a bound of its error from the device's own products."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedbilevel.mathematics import conjugate_gradients, tree
from fedbilevel.mathematics.problem import Lower, Upper

PROBES = 4
"""Random vectors by which the norm of a mixed derivative is estimated."""
PROBE_RESIDUAL = 1e-3
"""At which a solve for a random vector is done, which looks for small curvature."""


class DeviceSolves(NamedTuple):
    """The mean over devices of what they report about their own solves.

    Attributes:
        indirect: of J_k z_k, where z_k ≈ H_k⁻¹ b_k.
        error: of a bound of ‖J_k H_k⁻¹ r_k‖, where r_k = b_k − H_k z_k was measured by
            a product of its own.
        residual: of ‖r_k‖ / ‖b_k‖.
        unfinished: of 1 for a device that used up its products, 0 for others.
        needed: of the products such a device needs, 0 for others.
        not_convex: of 1 for a device that met curvature not above zero, 0 for others.
        curvature: of that curvature, 0 for others.

    Example:
        >>> DeviceSolves(*range(7)).residual
        2
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
    """Return what one device reports about its own solve of H_k z_k = b_k.

    Args:
        hessian: H_k times a vector.
        mixed: J_k times a vector.
        right: b_k.
        probes: `PROBES` random vectors of signs, stacked.
        limit: the most Hessian products.
        tolerance: the residual at which the solve is done, relative to b_k.

    Example:
        >>> import jax.numpy as jnp
        >>> probes = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        >>> found = solve_adjoint(
        ...     lambda v: jnp.array([1.0, 4.0]) * v,
        ...     lambda v: -v,
        ...     jnp.ones(2),
        ...     probes,
        ...     limit=jnp.array(9),
        ...     tolerance=jnp.array(1e-6),
        ... )
        >>> found.indirect, float(found.unfinished)
        (Array([-1.  , -0.25], dtype=float32), 0.0)
    """

    def and_probes(vector: Lower, count: int) -> Lower:
        return jax.tree.map(
            lambda one, more: jnp.concatenate([one[None], more[:count]]), vector, probes
        )

    # With the solve for b_k, one for a random vector: it meets curvature that b_k has
    # no part in, so that the bound of the error holds for it too.
    both = jax.vmap(
        lambda right, tolerance: conjugate_gradients.solve(
            hessian, right, tolerance, limit
        )
    )(and_probes(right, 1), jnp.stack([tolerance, 0 * tolerance + PROBE_RESIDUAL]))
    z = jax.tree.map(lambda leaf: leaf[0], both.solution)
    # The recursion's residual drifts from the true one: this is measured.
    rest = tree.squared_norm(tree.subtract(right, hessian(z)))
    squared, whole = jnp.maximum(rest, both.squared[0]), tree.squared_norm(right)
    # One loop for all vectors, since each product is compiled in many lines.
    images = jax.lax.map(mixed, and_probes(z, PROBES))
    # Random signs v have E ‖Jv‖² = ‖J‖², the Frobenius norm (Hutchinson).
    size = jnp.sqrt(jnp.mean(jax.vmap(tree.squared_norm)(images)[1:]))
    convex = jnp.all(both.convex)
    unfinished = convex & ~jnp.all(both.converged)
    needed = jnp.max(jax.vmap(conjugate_gradients.products_needed)(both))
    return DeviceSolves(
        indirect=jax.tree.map(lambda leaf: leaf[0], images),
        error=size * jnp.max(both.inverse_bound) * jnp.sqrt(squared),
        residual=jnp.sqrt(squared / jnp.where(whole > 0, whole, 1)),
        unfinished=jnp.where(unfinished, 1.0, 0.0),
        needed=jnp.where(unfinished, needed, 0.0),
        not_convex=jnp.where(convex, 0.0, 1.0),
        curvature=jnp.where(convex, 0.0, jnp.min(both.lowest)),
    )
