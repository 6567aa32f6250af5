"""Estimators of the hypergradient ∇Φ(x) = ∇x f − ∇²xy g [∇²yy g]⁻¹ ∇y f (Lemma 1).

Each is a small frozen dataclass, called as `estimator(problem, x, y, samples)`. They
differ in how they apply the inverse Hessian. On one device's samples, each follows that
device's own hypergradient: its mean over devices is the global hypergradient only where
the devices are homogeneous, as the paper assumes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

import jax
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import (
    Batch,
    BilevelProblem,
    HessianProduct,
    Lower,
    Upper,
)
from fedbilevel.mathematics.settings import Count, Range, check_ranges, register


class Samples(NamedTuple):
    """What one step draws: ξ̂ = {ξ, ζ_0, ζ_1 … ζ_Q}, and ζ for the lower gradient.

    Attributes:
        upper: ξ, for both gradients of the upper loss.
        lower: ζ, for the gradient of the lower loss.
        cross: ζ_0, for the mixed second derivative.
        curvature: ζ_1 … ζ_Q, independent batches for the Hessians.

    Example:
        >>> import jax.numpy as jnp
        >>> batch = jnp.ones(4)
        >>> Samples(batch, batch, batch, (batch, batch)).curvature[1].shape
        (4,)
    """

    upper: Batch
    lower: Batch
    cross: Batch
    curvature: tuple[Batch, ...]


@runtime_checkable
class Hypergradient(Protocol):
    """An estimator of ∇Φ at (x, y) from one step's samples."""

    @property
    def curvature_draws(self) -> int:
        """The number of independent batches that `samples.curvature` must hold."""

    def __call__(
        self, problem: BilevelProblem, x: Upper, y: Lower, samples: Samples, /
    ) -> Upper:
        """Return the estimate, a tree like x."""


@register
@dataclass(frozen=True)
class NeumannSeries:
    """The paper's estimator: a truncated Neumann series with independent samples.

    Ĥ = θ Σ_{q=−1}^{Q−1} Π_{j=Q−q}^{Q} (I − θ ∇²yy g(x, y; ζ_j)) stands for the inverse
    Hessian: Q + 1 terms, Q Hessian products, ζ_Q applied first. Its bias is at most
    Δ_Q = (1 − θμ)^{Q+1} L_0 L_1 / μ when θ < 1 / L_1.

    Attributes:
        terms: Q, the number of Hessian products.
        scale: θ, below 1 / L_1 where L_1 bounds the lower Hessian.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, NeumannSeries, Samples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> one = jnp.ones(1)
        >>> samples = Samples(upper=one, lower=one, cross=one, curvature=(one,) * 20)
        >>> estimate = NeumannSeries(terms=20, scale=0.4)(
        ...     problem, jnp.array(3.0), jnp.array(3.0), samples
        ... )
        >>> round(float(estimate), 4)  # Φ(x) = (x − 1)²
        4.0
    """

    terms: Count
    scale: Annotated[
        tree.Scalar,
        Range(
            above=0.0,
            remark="take it a little below 1 / L_1, the inverse of the largest "
            "curvature of the lower loss",
        ),
    ]

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def curvature_draws(self) -> int:
        """Q independent batches, one a Hessian product."""
        return self.terms

    def __call__(
        self, problem: BilevelProblem, x: Upper, y: Lower, samples: Samples, /
    ) -> Upper:
        """Return ∇x f(ξ) − ∇²xy g(ζ_0) Ĥ ∇y f(ξ)."""
        gradient_x, gradient_y = problem.upper_gradients(x, y, samples.upper)
        # power = Π_{j=Q−q}^{Q} (I − θ∇²yy g(ζ_j)) ∇y f, begun at q = −1 where the
        # product is empty. The loop is unrolled: on a CPU this ran 1.3 to 1.5 times as
        # fast as a scan, which would gather all Q batches before it used the first.
        power = total = gradient_y
        for batch in reversed(samples.curvature):
            product = _product(problem.hessian_product, x, y, batch, power)
            power = tree.add_scaled(power, -self.scale, product)
            total = tree.add_scaled(total, 1.0, power)
        inverse_product = tree.scale(self.scale, total)
        return tree.subtract(
            gradient_x, problem.cross_product(x, y, samples.cross, inverse_product)
        )


# Traced once for a series and not Q times; the compiled program is the same. The oracle
# is an argument, since JAX would want a weak reference to a function of its own.
@partial(jax.jit, static_argnums=0, inline=True)
def _product(
    oracle: HessianProduct, x: Upper, y: Lower, batch: Batch, vector: Lower
) -> Lower:
    return oracle(x, y, batch, vector)


@register
@dataclass(frozen=True)
class ConjugateGradient:
    """The inverse Hessian of one batch, applied by conjugate gradients.

    Exact up to its tolerance on that batch, but biased for the expected Hessian, since
    the inverse of a sample is not a sample of the inverse: use it with large or full
    batches, and `NeumannSeries` with small ones.

    Attributes:
        iterations: the most Hessian products to spend.
        tolerance: stop when the residual is this small relative to ∇y f.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, ConjugateGradient, Samples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> one = jnp.ones(1)
        >>> samples = Samples(upper=one, lower=one, cross=one, curvature=(one,))
        >>> estimate = ConjugateGradient()(
        ...     problem, jnp.array(3.0), jnp.array(3.0), samples
        ... )
        >>> round(float(estimate), 4)  # Φ(x) = (x − 1)²
        4.0
    """

    iterations: Count = 100
    tolerance: Annotated[tree.Scalar, Range(at_least=0.0)] = 1e-6

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def curvature_draws(self) -> int:
        """One batch: every product must be with the same Hessian."""
        return 1

    def __call__(
        self, problem: BilevelProblem, x: Upper, y: Lower, samples: Samples, /
    ) -> Upper:
        """Return ∇x f(ξ) − ∇²xy g(ζ_0) [∇²yy g(ζ_1)]⁻¹ ∇y f(ξ)."""
        gradient_x, gradient_y = problem.upper_gradients(x, y, samples.upper)
        (batch,) = samples.curvature
        # Flat, because the solver wants one dtype where y may have several.
        right, unravel = ravel_pytree(gradient_y)

        def hessian(vector: Float[Array, "y"]) -> Float[Array, "y"]:
            product = problem.hessian_product(x, y, batch, unravel(vector))
            flat: Float[Array, "y"] = ravel_pytree(product)[0]
            return flat

        solution, _ = cg(hessian, right, tol=self.tolerance, maxiter=self.iterations)
        mixed = problem.cross_product(x, y, samples.cross, unravel(solution))
        return tree.subtract(gradient_x, mixed)
