"""The constants of the paper's assumptions, estimated at a point of a run."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.engines.loss_checks import require_mean
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import in_double
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.problem import BilevelProblem, Loss, Lower, Upper
from fedbilevel.metrics.extremes import (
    Vector,
    extreme_eigenvalues,
    largest_trilinear,
    spectral_norm,
)
from fedbilevel.metrics.full_data import (
    FullData,
    first_rows,
    full_data,
    full_data_problem,
)
from fedbilevel.theory.assumptions import Assumptions, combine_assumptions

SEARCHES = 3
"""The number of random starts of a search for the largest third derivative."""

FlatLoss: TypeAlias = Callable[[Vector, FullData], Float[Array, ""]]
"""A loss of x and y in one vector, x first."""


def estimate_assumptions(
    problem: BilevelProblem,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    weights: Weighting = None,
    examples: int = 8,
    seed: int = 0,
    tolerance: float = 1e-6,
    block_size: int = 512,
) -> Assumptions:
    """Estimate μ, L_0, L_1, L_21, L_22 and σ at one point, in double precision.

    The paper's constants are suprema over all points and all examples. These estimates
    use one point, so the true L's and σ may be larger and the true μ smaller. Take
    `theory.combine_assumptions` of the estimates at several points of a run.

    At the point, L_0 is the largest gradient of f on any single example and σ the root
    mean square distance of ∇y g on single examples from its mean, both over all
    examples. The other constants are the worst values on the mean of all examples and
    on a few single examples: μ and L_1 from extreme eigenvalues of ∇²yy g and of the
    Hessians of f and g in (x, y), by Lanczos' method; L_21 and L_22 by a local search
    for the direction in which ∇²xy g and ∇²yy g change most, which may miss the global
    maximum.

    Args:
        problem: the two losses, means over their batches.
        devices: data of all devices, loaded at once.
        x: upper variable of the point.
        y: lower variable of the point.
        weights: weights of the devices, as for `run`.
        examples: number of single examples of each loss to draw, since the assumptions
            concern every example; 0 uses the mean alone.
        seed: seed of the draws and of the starts of searches.
        tolerance: relative error of eigenvalues.
        block_size: number of examples evaluated at once; memory grows with it.

    Raises:
        ValueError: if the lower loss is not strongly convex here, or not a mean.
        ArithmeticError: if eigenvalues do not converge to the tolerance.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel.metrics.estimation import estimate_assumptions
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> devices = InMemoryDevices([LocalExamples(np.ones(2), np.array([0.0, 2.0]))])
        >>> result = estimate_assumptions(problem, devices, 3.0, 4.0)
        >>> result.strong_convexity, result.upper_lipschitz, result.deviation
        (2.0, 6.0, 6.0)
    """
    if problem.view is not None:
        raise TypeError(
            "estimate_assumptions differentiates the losses with JAX. Write them with "
            "jax.numpy instead of PyTorch, or use diagnose."
        )
    with jax.enable_x64(True):
        x, y = in_double(x), in_double(y)
        upper, lower = full_data(devices, weights, block_size)
        inner = for_devices(problem)
        require_mean("upper_loss", inner.upper_loss, x, y, first_rows(upper))
        require_mean("lower_loss", inner.lower_loss, x, y, first_rows(lower))
        whole = full_data_problem(problem)
        point, unravel = ravel_pytree((x, y))
        f, g = _flat(whole.upper_loss, unravel), _flat(whole.lower_loss, unravel)
        in_y = (np.arange(point.size) >= ravel_pytree(x)[0].size).astype(float)
        slopes = _distances(f, point, upper, 0 * point, np.ones_like(in_y))
        mean = jax.jit(jax.grad(g))(point, lower)
        distances = _distances(g, point, lower, mean, in_y)
        variance = float(jnp.sum(lower.shares * distances**2))
        generator = np.random.default_rng(seed)
        sets = [(upper, lower)]
        for _ in range(examples):
            sets.append((_draw(upper, generator), _draw(lower, generator)))
        curvatures = [
            _curvatures(f, g, point, in_y, *data, generator, tolerance) for data in sets
        ]
        return combine_assumptions(
            [
                Assumptions(
                    strong_convexity=smallest,
                    upper_lipschitz=float(jnp.max(slopes)),
                    gradient_lipschitz=largest,
                    cross_lipschitz=cross,
                    curvature_lipschitz=curvature,
                    deviation=variance**0.5,
                )
                for smallest, largest, cross, curvature in curvatures
            ]
        )


def _curvatures(
    f: FlatLoss,
    g: FlatLoss,
    point: Vector,
    in_y: Vector,
    upper: FullData,
    lower: FullData,
    generator: np.random.Generator,
    tolerance: float,
) -> tuple[float, float, float, float]:
    """Return μ, L_1, L_21 and L_22 on some examples."""
    rows = np.flatnonzero(in_y)

    def lower_hessian(vector: Vector) -> Vector:
        padded = np.zeros_like(in_y)
        padded[rows] = vector
        return np.asarray(_second(g, point, lower, padded))[rows]

    start = generator.normal(size=point.size)
    smallest, largest = extreme_eigenvalues(lower_hessian, start[rows], tolerance)
    if smallest <= 1e-12 * largest:  # Zero up to rounding.
        single = lower.shares.size == 1
        raise ValueError(
            f"lower_loss is not strongly convex in y on "
            f"{'a single example' if single else 'the mean of all examples'}: its "
            f"smallest curvature is {smallest:.3g}. Add a penalty on y"
            f"{', or pass examples=0 to use the mean alone' if single else ''}."
        )
    for loss, data in ((f, upper), (g, lower)):
        product = partial(_second, loss, point, data)
        largest = max(largest, spectral_norm(product, start, tolerance))
    starts = generator.normal(size=(SEARCHES, 2, point.size))
    return (
        smallest,
        largest,
        float(_fastest_change(g, point, lower, 1 - in_y, in_y, starts)),
        float(_fastest_change(g, point, lower, in_y, in_y, starts)),
    )


@partial(jax.jit, static_argnums=0)
def _second(loss: FlatLoss, point: Vector, data: FullData, vector: Vector) -> Vector:
    """Return the product of the Hessian in (x, y) with a vector."""
    product: Vector = jax.jvp(
        lambda z: jax.grad(loss)(z, data), (point,), (jnp.asarray(vector),)
    )[1]
    return product


@partial(jax.jit, static_argnums=0)
def _fastest_change(
    loss: FlatLoss,
    point: Vector,
    data: FullData,
    left: Vector,
    right: Vector,
    starts: Float[Array, "starts 2 size"],
) -> Float[Array, ""]:
    """Return the largest third derivative found in a block of the Hessian."""

    def third(first: Vector, second: Vector) -> Vector:
        derivative: Vector = jax.jvp(
            lambda z: _second(loss, z, data, first), (point,), (second,)
        )[1]
        return derivative

    return largest_trilinear(third, left, right, starts)


@partial(jax.jit, static_argnums=0)
def _distances(
    loss: FlatLoss, point: Vector, data: FullData, centre: Vector, part: Vector
) -> Float[Array, "blocks block"]:
    """Return the distance of each example's gradient from a centre, in x, y or both."""

    def distance(row: PyTree) -> Float[Array, ""]:
        gradient = jax.grad(loss)(point, _single(row))
        return jnp.sqrt(tree.squared_norm(part * (gradient - centre)))

    distances: Float[Array, "blocks block"]
    distances = jax.lax.map(jax.vmap(distance), data.rows)
    return distances


def _draw(data: FullData, generator: np.random.Generator) -> FullData:
    shares = np.asarray(data.shares)
    flat_index = generator.choice(shares.size, p=shares.ravel() / shares.sum())
    index = np.unravel_index(flat_index, shares.shape)
    return _single(jax.tree.map(lambda leaf: leaf[index], data.rows))


def _single(row: PyTree) -> FullData:
    return FullData(jax.tree.map(lambda leaf: leaf[None, None], row), jnp.ones((1, 1)))


def _flat(loss: Loss, unravel: Callable[..., tuple[Upper, Lower]]) -> FlatLoss:
    def flat(point: Vector, data: FullData) -> Float[Array, ""]:
        x, y = unravel(point)
        return loss(x, y, data)

    return flat
