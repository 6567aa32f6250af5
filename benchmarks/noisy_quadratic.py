"""The problem of the experiments on theory, which count steps to a stationarity.

Every device draws from the same examples of one small quadratic (`quadratic_task`), as
the paper assumes (Lemma 1). y*(x) and ∇Φ(x) are known, so stationarity is exact and
cheap inside a compiled program. Both gradients are noisy. A and C are slightly noisy
too: otherwise all updates would be linear, and local steps would have no effect.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.algorithms.momentum import MomentumState
from fedbilevel.problems import Quadratic, Task, quadratic_task
from fedbilevel.theory import Assumptions, lower_error_factor

# JAX reads it at the first computation. The speed of these programs is the same, and
# those of LocalBSGVRM compile in two thirds of the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

SIZE = 5
CURVATURES = np.linspace(1.0, 1.5, SIZE)
"""The eigenvalues of A: well conditioned, so that a short series is nearly exact."""
COUPLING = 0.3
RIDGE = 0.5
DISTANCE = 25.0
"""Initial distance from x*; y starts at y*(x), as in Algorithm 2."""
SERIES_SCALE = 0.5
"""θ, below the inverse of every example's largest curvature, 1.95."""
CONTRACTION = 1 - SERIES_SCALE * float(CURVATURES[0])
"""1 − θμ."""

Measure = Callable[[MomentumState], Float[Array, ""]]


class Noise(NamedTuple):
    """The scatter of examples.

    Attributes:
        gradients: noise of each entry of ∇x f, ∇y f and ∇y g.
        curvature: noise of A and C (see `quadratic_task`).
    """

    gradients: float
    curvature: float = 0.1


class Start(NamedTuple):
    """The initial point of runs, and its stationarity."""

    x: Float[Array, "upper"]
    y: Float[Array, "lower"]
    stationarity: float


def quadratic(devices: int = 1) -> Quadratic:
    """Return the quadratic of identical devices."""
    generator = np.random.default_rng(0)
    basis, rotation = np.linalg.qr(generator.normal(size=(2, SIZE, SIZE)))[0]
    offset, target, shift = generator.normal(size=(3, SIZE))

    def replicate(
        part: Float[np.ndarray, "*shape"],
    ) -> Float[np.ndarray, "devices *shape"]:
        return np.stack([part] * devices)

    return Quadratic(
        matrices=replicate((basis * CURVATURES) @ basis.T),
        couplings=replicate(COUPLING * rotation),
        offsets=replicate(offset),
        targets=replicate(target),
        shifts=replicate(shift),
        ridge=RIDGE,
    )


def task(devices: int, noise: Noise) -> Task:
    """Return devices that share 1,000 examples."""
    return quadratic_task(
        quadratic(devices),
        examples=1000,
        noise=noise.gradients,
        curvature_noise=noise.curvature,
    )


@cache
def stationarity() -> Measure:
    """Return ‖∇Φ(x)‖² + L̃²‖y − y*(x)‖².

    Every call returns the same object, so that sweeps share compiled programs.
    """
    exact = quadratic()
    matrix, coupling = exact.matrices[0], exact.couplings[0]
    slope = np.linalg.solve(matrix, coupling)  # of y*
    hessian = RIDGE * np.eye(SIZE) + slope.T @ slope  # of Φ
    best = exact.solution()
    lower_best = exact.lower_solution(best)
    # L̃ is about the mean losses, whose second derivatives are constant.
    mixed = np.block([[np.zeros((SIZE, SIZE)), -coupling.T], [-coupling, matrix]])
    factor = lower_error_factor(
        Assumptions(
            strong_convexity=float(CURVATURES[0]),
            upper_lipschitz=0.0,  # a factor of L_21 and L_22 only, both zero
            gradient_lipschitz=max(1.0, float(np.linalg.norm(mixed, 2))),
        )
    )

    def measure(server: MomentumState) -> Float[Array, ""]:
        offset = server.x - best
        error = server.y - (lower_best + slope @ offset)
        return jnp.sum((hessian @ offset) ** 2) + factor**2 * jnp.sum(error**2)

    return measure


def start() -> Start:
    """Return the initial x at `DISTANCE` from x*, and y at y*(x)."""
    exact = quadratic()
    direction = np.random.default_rng(1).normal(size=SIZE)
    x = exact.solution() + DISTANCE * direction / np.linalg.norm(direction)
    return Start(
        jnp.asarray(x),
        jnp.asarray(exact.lower_solution(x)),
        float(np.sum(exact.hypergradient(x) ** 2)),
    )
