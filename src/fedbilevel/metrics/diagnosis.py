"""Diagnosis of heterogeneity: local hypergradients against the global one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf, nan
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting, level_weights, names_of
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.query_session import QuerySession
from fedbilevel.engines.run import Run
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.arrays import in_double
from fedbilevel.mathematics.problem import (
    Batch,
    BilevelProblem,
    Lower,
    Upper,
    require_double,
)
from fedbilevel.metrics.federated_solves import Adjoint, FederatedSolves, norm
from fedbilevel.metrics.lower_errors import LowerErrors, lower_errors
from fedbilevel.metrics.lower_solves import lower_solution, refine
from fedbilevel.metrics.obstacles import (
    DiagnosisProgress,
    Obstacle,
    ObstacleCause,
    ObstacleError,
    Stage,
)
from fedbilevel.metrics.survey import Question, Survey

SMALL = 0.1
"""The solves are refined until the error is below this fraction of the tolerance."""
PASSES = 4
"""The most solves of y*(x) and the adjoints, each to a smaller residual."""
SMALLEST_RESIDUAL = 1e-14
"""The smallest residual that rounding in double precision permits."""
VANISHING = 1e-12
"""A hypergradient smaller than this, relative to its parts, is rounding."""


class Verdict(Enum):
    """The outcomes of a diagnosis."""

    HOMOGENEOUS = (
        "homogeneous enough: you may use LocalBSGM, LocalBSGVRM and LFedNest. "
        "LocalBSGVRM needs the fewest samples in theory."
    )
    HETEROGENEOUS = (
        "heterogeneous: LocalBSGM, LocalBSGVRM and LFedNest would converge to a biased "
        "point. Use AutoFedBiO (auto in a file), FedBiO, FedBiOAcc, SimFBO "
        "or FedNest, or ShroFBO if devices take unequal numbers of local steps."
    )
    UNCLEAR = "unclear"


class Diagnosis(NamedTuple):
    """The distance of the mean of local hypergradients from the global one (Lemma 1).

    Attributes:
        distance: ‖mean local − global‖ at (x, y*(x)), relative to the longer of the
            global hypergradient and its indirect part J̄ H̄⁻¹ b̄; NaN if a solve failed.
        low: lower bound of the distance, by the bound on the error of the solves.
        high: upper bound of the distance.
        tolerance: largest distance of a homogeneous federation.
        residual: residual of the global adjoint, relative to ∇y f̄.
        local_residual: mean relative residual of the devices' local adjoints.
        obstacle: reason why there is no verdict; None if there is a verdict.
        costs: costs of the diagnosis. Samples are counted as if each device had as many
            examples as the first.

    Example:
        >>> Diagnosis(0.5, low=0.4, high=0.6, tolerance=0.1).verdict.name
        'HETEROGENEOUS'
        >>> Diagnosis(0.1, low=0.0, high=0.2, tolerance=0.1).verdict.name
        'UNCLEAR'
        >>> str(Diagnosis(0.45, low=0.45, high=0.45, tolerance=0.1)).partition(". ")[0]
        "The mean of the devices' local hypergradients differs from the global
        hypergradient by 45 % (tolerance 10 %)"
    """

    distance: float
    low: float
    high: float
    tolerance: float
    residual: float = 0.0
    local_residual: float = 0.0
    obstacle: Obstacle | None = None
    costs: Costs = Costs()

    @property
    def verdict(self) -> Verdict:
        """The verdict, as far as the bounds of the distance permit one."""
        if self.obstacle is not None:
            return Verdict.UNCLEAR
        if self.low > self.tolerance:
            return Verdict.HETEROGENEOUS
        return Verdict.HOMOGENEOUS if self.high <= self.tolerance else Verdict.UNCLEAR

    def __str__(self) -> str:
        if self.obstacle is not None:
            return f"The verdict is unclear. {self.obstacle}"
        distance, low, high = (
            f"{100 * value:.3g} %" for value in (self.distance, self.low, self.high)
        )
        # Solves to a small residual have bounds that are the same when rounded.
        bounds = "" if low == high else f", at least {low} and at most {high}"
        return (
            "The mean of the devices' local hypergradients differs from the global "
            f"hypergradient by {distance}{bounds} (tolerance {100 * self.tolerance:g} "
            f"%). This federation is {self.verdict.value}"
        )


def _require_both_levels(devices: Devices, weights: Weighting) -> None:
    """Raise ValueError if a device lacks a level: it has no local hypergradient."""
    levels = level_weights(devices, weights)
    for device in np.flatnonzero((levels.upper > 0) != (levels.lower > 0))[:1]:
        raise ValueError(
            f"diagnose compares the hypergradients of single devices, but device "
            f"{names_of(devices)[device]!r} has no upper or no lower examples of a "
            "weight above 0. Set its weight to 0 in both losses."
        )


def diagnose(
    problem: BilevelProblem,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    survey: Survey = Survey(),
    tolerance: float = 0.1,
    seed: int = 0,
    weights: Weighting = None,
    engine: Engine = Simulation(),
    report: Callable[[DiagnosisProgress], None] = lambda progress: None,
) -> Diagnosis:
    """Measure the violation of the paper's homogeneity assumption at a point.

    Lemma 1 lets every device use its local inverse Hessian, because all are equal. If
    they are not, mean(J_k H_k⁻¹ b_k) differs from J̄ H̄⁻¹ b̄, and the paper's algorithms
    follow the former. Conjugate gradients solve the former on each device, and the
    latter over exchanges in which devices share Hessian products. Devices use all of
    their examples, so there is no sampling noise. The bounds of the distance follow
    from the measured residuals of all solves and from the error of y*(x). All is
    computed in double precision.

    Newton steps from y compute y*(x) first, until its error is negligible in the bounds
    or rounding hides the gradient. All devices participate, since a sample has another
    inverse Hessian. The verdict holds near x: diagnose again at the end of a run.

    Args:
        problem: the two losses, means over their batches.
        devices: data of all devices.
        x: upper variable of the point.
        y: start of the search for y*(x).
        survey: batch size, largest number of products and residual of the solves.
        tolerance: largest relative distance of a homogeneous federation.
        seed: seed of the random vectors that bound errors, and of the engine.
        weights: weights of the devices, as for `run`.
        engine: engine that executes the devices' work.
        report: function called with the progress after each exchange.

    Raises:
        ValueError: if the tolerance is not above zero.
        ArithmeticError: if an upload is not finite, y*(x) cannot be computed, or the
            hypergradient vanishes.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel.metrics import diagnose
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean(batch * y**2 / 2 - x * y),
        ... )
        >>> ones, fours = np.ones(1), np.full(1, 4.0)
        >>> equal = InMemoryDevices([LocalExamples(ones, ones)] * 2)
        >>> mixed = InMemoryDevices(
        ...     [LocalExamples(ones, ones), LocalExamples(ones, fours)]
        ... )
        >>> for devices in (equal, mixed):
        ...     print(diagnose(problem, devices, 3.0, 0.0).verdict.name)
        HOMOGENEOUS
        HETEROGENEOUS
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}. Pass a number above 0.")
    require_double(problem)
    _require_both_levels(devices, weights)
    with jax.enable_x64(True):
        session = QuerySession(
            Run(
                problem.for_jax.map(_InDouble),
                survey,
                devices,
                in_double(x),
                in_double(y),
                rounds=1,
                seed=seed,
                weights=weights,
                engine=engine,
            )
        )
        solves = FederatedSolves(session, survey, report)
        try:
            diagnosis = _measure(solves, tolerance)
        except ObstacleError as error:
            diagnosis = Diagnosis(nan, 0.0, inf, tolerance, obstacle=error.obstacle)
        return diagnosis._replace(costs=session.costs)


def _measure(solves: FederatedSolves, tolerance: float) -> Diagnosis:
    server = lower_solution(solves, solves.session.server)
    residuals = [solves.survey.residual] * 2
    for _ in range(PASSES):
        server = solves.session.ask(Question.UPPER, server)
        curvature = solves.curvature(server)
        shared, z = solves.adjoint(server, curvature.factor, residuals[0])
        local = solves.local_adjoints(server, residuals[1])
        lower = lower_errors(solves, server, curvature, z, shared, local, residuals[1])
        diagnosis = _compare(server.direct, shared, local, lower, tolerance)
        goal = SMALL * tolerance * _size(server.direct, shared.indirect)
        before = server
        if lower.total > SMALL * goal:
            # The error of y and all errors caused by it are proportional to ‖∇y ḡ‖.
            server = refine(solves, server, SMALL**2 * goal / lower.total)
        if diagnosis.obstacle is None and server is before:
            return diagnosis
        # The bounds are proportional to the residuals.
        residuals = [
            max(SMALLEST_RESIDUAL, residual * min(1, goal / (4 * part.error + 1e-300)))
            for residual, part in zip(residuals, (shared, local), strict=True)
        ]
    return diagnosis


def _compare(
    direct: Upper, shared: Adjoint, local: Adjoint, lower: LowerErrors, tolerance: float
) -> Diagnosis:
    size = _size(direct, shared.indirect)
    parts = norm(direct), norm(shared.indirect), norm(local.indirect)
    if size <= VANISHING * max(parts):
        raise ArithmeticError(
            "The hypergradient vanishes at this x, so no distance relative to it is "
            "defined. Pass another x."
        )
    # ∇x f̄ is the same in both hypergradients.
    difference = norm(tree.subtract(local.indirect, shared.indirect))
    solve_error = shared.error + local.error
    error = solve_error + lower.indirect + lower.local
    size_error = shared.error + lower.indirect + lower.direct
    distance = difference / size
    low = max(0.0, difference - error) / (size + size_error)
    high = (difference + error) / (size - size_error) if size_error < size else inf
    allowed = max(SMALL * tolerance, 0.5 * distance) * size
    obstacle = None
    if low <= tolerance < high or max(error, size_error) > allowed:
        residual = max(shared.residual, local.residual)
        obstacle = Obstacle(ObstacleCause.REMAINDER, Stage.LOCAL, residual)
        if lower.total > solve_error:
            obstacle = Obstacle(ObstacleCause.REMAINDER, Stage.LOWER, lower.residual)
    return Diagnosis(
        distance, low, high, tolerance, shared.residual, local.residual, obstacle
    )


def _size(direct: Upper, indirect: Upper) -> float:
    return max(norm(tree.subtract(direct, indirect)), norm(indirect))


# Examples are mostly stored in single precision. It is a dataclass and not a closure,
# so that a second diagnosis of the same problem needs no compilation.
@dataclass(frozen=True)
class _InDouble:
    oracle: Callable[..., Any]

    def __call__(self, x: Upper, y: Lower, batch: Batch, *vector: Lower) -> Any:
        def cast(leaf: Array) -> Array:
            floating = jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(jnp.float64) if floating else leaf

        return self.oracle(x, y, jax.tree.map(cast, batch), *vector)
