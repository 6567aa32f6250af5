"""The largest curvature of the lower loss, by which rates and series are scaled."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.metrics.extremes import Vector, spectral_norm
from fedbilevel.metrics.full_data import full_data, full_data_problem


def largest_curvature(
    problem: BilevelProblem,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    weights: Weighting = None,
    block_size: int = 4096,
) -> float:
    """Return the largest eigenvalue of ∇²yy g over all examples, at a point.

    Rates of y and scales of a series should be slightly below its inverse. Batches may
    have a larger curvature than the mean of all examples, the more so the smaller they
    are.

    Args:
        problem: the two losses.
        devices: data of all devices, loaded at once.
        x: upper variable of the point.
        y: lower variable of the point.
        weights: weights of the devices, as for `run`.
        block_size: number of examples evaluated at once; memory grows with it.

    Raises:
        ArithmeticError: if the relative error exceeds a hundredth.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean(batch) * y**2 / 2,
        ... )
        >>> devices = InMemoryDevices([LocalExamples(np.ones(2), np.array([1.0, 5.0]))])
        >>> largest_curvature(problem, devices, 0.0, 0.0)
        3.0
    """
    _, lower = full_data(devices, weights, block_size)
    whole = full_data_problem(problem)
    flat, unravel = ravel_pytree(jax.tree.map(np.asarray, y))
    product = jax.jit(whole.hessian_product)

    def flat_product(vector: Vector) -> Vector:
        along = unravel(jnp.asarray(vector, flat.dtype))
        return np.asarray(ravel_pytree(product(x, y, lower, along))[0], float)

    start = np.random.default_rng(0).normal(size=flat.size)
    return spectral_norm(flat_product, start, tolerance=1e-2)
