"""Steps on the adjoint z ≈ H̄⁻¹ ∇y f̄ together with x and y.

At a solution, z = H̄⁻¹ ∇y f̄ is the adjoint of the lower problem, where H̄ and ∇y f̄ are
means over devices. It solves H̄ z = ∇y f̄, an equation in means, so devices can update z
with steps on H_k z − ∇y f_k as they update y with steps on ∇y g_k. The hypergradient is
then ∇x f̄ − J̄ z, again a mean over devices. No device inverts its local Hessian, so
these methods are correct on heterogeneous devices.
"""

from typing import NamedTuple

import jax

from fedbilevel.mathematics import arrays, tree
from fedbilevel.mathematics.hypergradients import Samples
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper


class AdjointPoint(NamedTuple):
    """(x, y, z), or one direction for each of the three.

    Attributes:
        x: upper variable.
        y: lower variable.
        adjoint: z, a tree like y.
    """

    x: Upper
    y: Lower
    adjoint: Lower


def initial_point(x: Upper, y: Lower) -> AdjointPoint:
    """Return (x, y, 0).

    Example:
        >>> import jax.numpy as jnp
        >>> initial_point(jnp.ones(2), jnp.ones(3)).adjoint
        Array([0., 0., 0.], dtype=float32)
    """
    return AdjointPoint(x, y, tree.scale(0.0, y))


def directions(
    problem: BilevelProblem, point: AdjointPoint, samples: Samples
) -> AdjointPoint:
    """Return ∇x f − J z, ∇y g and H z − ∇y f, the descent directions of x, y and z.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, Samples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> point = AdjointPoint(*map(jnp.array, (3.0, 3.0, 2.0)))
        >>> one = jnp.ones(1)
        >>> samples = Samples(one, one, one, (one,))
        >>> [float(d) for d in directions(problem, point, samples)]
        [4.0, 0.0, 0.0]
    """
    x, y, z = point
    (curvature,) = samples.curvature
    gradient_x, gradient_y = problem.upper_gradients(x, y, samples.upper)
    return AdjointPoint(
        x=tree.subtract(gradient_x, problem.cross_product(x, y, samples.cross, z)),
        y=problem.lower_gradient(x, y, samples.lower),
        adjoint=tree.subtract(problem.hessian_product(x, y, curvature, z), gradient_y),
    )


def descend(
    point: AdjointPoint,
    rates: AdjointPoint,
    along: AdjointPoint,
    radius: tree.Scalar | None,
) -> AdjointPoint:
    """Return the point after a step along all three directions, z projected on a ball.

    Example:
        >>> import jax.numpy as jnp
        >>> point = initial_point(jnp.ones(2), jnp.ones(2))
        >>> rates = AdjointPoint(0.5, 0.5, 0.5)
        >>> down = AdjointPoint(jnp.ones(2), jnp.ones(2), jnp.array([-6.0, -8.0]))
        >>> descend(point, rates, down, radius=1.0).adjoint
        Array([0.6, 0.8], dtype=float32)
    """
    x, y, z = (
        tree.add_scaled(variable, -rate, direction)
        for variable, rate, direction in zip(point, rates, along, strict=True)
    )
    return AdjointPoint(x, y, z if radius is None else _project(z, radius))


def _project(z: Lower, radius: tree.Scalar) -> Lower:
    # Squares of half-precision entries overflow, so this uses full precision.
    squares = [arrays.total(arrays.wide(leaf) ** 2) for leaf in jax.tree.leaves(z)]
    norm = arrays.sqrt(arrays.total(arrays.stack(squares)))
    return tree.scale(arrays.minimum(radius / norm, 1.0), z)
