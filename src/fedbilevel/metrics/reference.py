"""Reference solutions: y*(x) and ∇Φ(x) on all data, to a tolerance."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, PyTree

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting
from fedbilevel.engines.loss_checks import require_mean
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import all_finite, in_double
from fedbilevel.mathematics.batches import for_devices
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper, require_double
from fedbilevel.metrics.full_data import (
    FullData,
    first_rows,
    full_data,
    full_data_problem,
)

POLISHING_STEPS = 10
CONJUGATE_GRADIENT_STEPS = 10_000


@runtime_checkable
class LowerSolution(Protocol):
    """A function that returns y*(x)."""

    def __call__(self, x: Upper, near: Lower, /) -> Lower:
        """Return the solution of the lower problem; `near` is an initial guess."""


@runtime_checkable
class TrueHypergradient(Protocol):
    """A function that returns ∇Φ(x)."""

    def __call__(self, x: Upper, near: Lower, /) -> Upper:
        """Return the hypergradient; `near` is an initial guess of y*(x)."""


class Reference(NamedTuple):
    """The two functions with which stationarity is measured.

    If a problem has closed forms, build a reference from them; otherwise
    `newton_reference` builds one from the losses.

    Attributes:
        lower_solution: function that returns y*(x).
        hypergradient: function that returns ∇Φ(x).

    Example:
        >>> reference = Reference(
        ...     lower_solution=lambda x, near: x,
        ...     hypergradient=lambda x, near: 2 * (x - 1),
        ... )
        >>> reference.hypergradient(3.0, 0.0)
        4.0
    """

    lower_solution: LowerSolution
    hypergradient: TrueHypergradient


def newton_reference(
    problem: BilevelProblem,
    devices: Devices,
    *,
    weights: Weighting = None,
    tolerance: float = 1e-9,
    block_size: int = 4096,
) -> Reference:
    """Return a reference that solves on the data of all devices, in double precision.

    SciPy's trust-region Newton-CG method computes y*(x), and conjugate gradients
    compute ∇Φ(x), both as NumPy arrays. The losses must be means over their batches.

    Args:
        problem: the two losses.
        devices: data of all devices, loaded at once.
        weights: weights of the devices, as for `run`.
        tolerance: largest norm of ∇y g at a solution.
        block_size: number of examples evaluated at once; memory grows with it.

    Raises:
        ValueError: on first use, if a loss is not the mean over its batch.
        ArithmeticError: on use, if x or the guess is not finite, or y*(x) does not
            converge to the tolerance.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel.metrics import newton_reference
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(4)
        >>> devices = InMemoryDevices([LocalExamples(ones, ones)])
        >>> reference = newton_reference(problem, devices)
        >>> round(float(reference.hypergradient(3.0, 0.0)), 6)  # Φ(x) = (x − 1)²
        4.0
    """
    require_double(problem)
    inner, whole = for_devices(problem.for_jax), full_data_problem(problem)
    with jax.enable_x64(True):
        upper, lower = full_data(devices, weights, block_size)
    solve = _lower_solver(whole, tolerance)
    solve_adjoint = _adjoint_solver(whole, tolerance)
    checked: list[bool] = []

    def lower_solution(x: Upper, near: Lower, /) -> Lower:
        with jax.enable_x64(True):
            x, near = in_double(x), in_double(near)
            if not checked:
                require_mean("upper_loss", inner.upper_loss, x, near, first_rows(upper))
                require_mean("lower_loss", inner.lower_loss, x, near, first_rows(lower))
                checked.append(True)
            if not all_finite((x, near)):
                raise ArithmeticError(
                    "x or y is not finite, because the run has diverged. Lower its "
                    "rates, or use DebugSimulation to find the first value that is not "
                    "finite."
                )
            return _as_numpy(solve(x, near, lower))

    def hypergradient(x: Upper, near: Lower, /) -> Upper:
        y = lower_solution(x, near)
        with jax.enable_x64(True):
            x, y = in_double(x), in_double(y)
            gradient, share = solve_adjoint(x, y, upper, lower)
            # The residual of the recursion, which stops it, drifts from the true one.
            if not float(share) <= 100 * tolerance:
                raise ArithmeticError(
                    "The solve of the hypergradient did not converge: its residual is "
                    f"{float(share):.2g} of the right-hand side, because lower_loss is "
                    "too ill-conditioned in y. Add a penalty on y to lower_loss."
                )
            return _as_numpy(gradient)

    return Reference(lower_solution, hypergradient)


def _lower_solver(
    whole: BilevelProblem, tolerance: float
) -> Callable[[Upper, Lower, FullData], Lower]:
    """Return a function that solves for y*(x): a trust region, then Newton steps."""

    @jax.jit
    def value_and_gradient(
        x: Upper, y: Lower, data: FullData
    ) -> tuple[Float[Array, ""], Lower]:
        return whole.lower_loss(x, y, data), whole.lower_gradient(x, y, data)

    product = jax.jit(whole.hessian_product)

    @jax.jit
    def residual(x: Upper, y: Lower, data: FullData) -> Float[Array, ""]:
        return jnp.sqrt(tree.squared_norm(whole.lower_gradient(x, y, data)))

    @jax.jit
    def newton_step(x: Upper, y: Lower, data: FullData) -> Lower:
        step, _ = cg(
            lambda vector: whole.hessian_product(x, y, data, vector),
            whole.lower_gradient(x, y, data),
            tol=1e-4,
            maxiter=CONJUGATE_GRADIENT_STEPS,
        )
        return tree.subtract(y, step)

    def in_trust_region(x: Upper, near: Lower, data: FullData) -> Lower:
        start, unravel = ravel_pytree(near)

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = value_and_gradient(x, unravel(jnp.asarray(flat)), data)
            return float(value), np.asarray(ravel_pytree(gradient)[0])

        def hessian(flat: np.ndarray, vector: np.ndarray) -> np.ndarray:
            y, along = unravel(jnp.asarray(flat)), unravel(jnp.asarray(vector))
            return np.asarray(ravel_pytree(product(x, y, data, along))[0])

        # A top-level import would double the time of reading an experiment file.
        from scipy.optimize import minimize

        result = minimize(
            loss,
            np.asarray(start),
            jac=True,
            hessp=hessian,
            method="trust-ncg",
            # Below 1e-7, rounding of the loss hides the effect of a step.
            options={"gtol": max(tolerance, 1e-7)},
        )
        return unravel(jnp.asarray(result.x))

    def solve(x: Upper, near: Lower, data: FullData) -> Lower:
        y = in_trust_region(x, near, data)
        for _ in range(POLISHING_STEPS):
            if float(residual(x, y, data)) <= tolerance:
                return y
            y = newton_step(x, y, data)
        raise ArithmeticError(
            f"The solve of the lower problem did not converge: ∇y g has norm "
            f"{float(residual(x, y, data)):.2g}, above tolerance={tolerance:.2g}. "
            "Check that lower_loss is strongly convex in y, or raise the tolerance."
        )

    return solve


def _adjoint_solver(
    whole: BilevelProblem, tolerance: float
) -> Callable[..., tuple[Upper, Float[Array, ""]]]:
    """Return a function of (x, y) and all data that returns ∇Φ(x) and a residual.

    It is that of conjugate gradients over the right-hand side.
    """

    @jax.jit
    def solve(
        x: Upper, y: Lower, upper: FullData, lower: FullData
    ) -> tuple[Upper, Float[Array, ""]]:
        gradient_x, gradient_y = whole.upper_gradients(x, y, upper)

        def hessian(vector: Lower) -> Lower:
            return whole.hessian_product(x, y, lower, vector)

        steps = CONJUGATE_GRADIENT_STEPS
        adjoint, _ = cg(hessian, gradient_y, tol=tolerance, maxiter=steps)
        rest = tree.squared_norm(tree.subtract(hessian(adjoint), gradient_y))
        share = jnp.sqrt(rest / jnp.maximum(tree.squared_norm(gradient_y), 1e-300))
        mixed = whole.cross_product(x, y, lower, adjoint)
        return tree.subtract(gradient_x, mixed), share

    return solve


def _as_numpy(variable: PyTree) -> PyTree:
    # JAX arrays in double precision cause errors if x64 is off; NumPy arrays do not.
    return jax.tree.map(np.asarray, variable)
