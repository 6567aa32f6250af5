"""Is a federation homogeneous enough for methods that use own hypergradients?"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from fedbilevel.data.devices import Devices
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.query_session import QuerySession
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.metrics.federated_solves import Adjoint, FederatedSolves, norm
from fedbilevel.metrics.lower_errors import LowerErrors, lower_errors
from fedbilevel.metrics.lower_solves import lower_solution, refine
from fedbilevel.metrics.obstacles import (
    Cause,
    DiagnosisProgress,
    Obstacle,
    ObstacleError,
    Stage,
)
from fedbilevel.metrics.survey import Question, Survey

SMALL = 0.1
"""The part of the tolerance that the bound of the error is brought below."""
PASSES = 4
"""How often y*(x) and the adjoints are solved, each time to a smaller residual."""
SMALLEST_RESIDUAL = 1e-14
"""Below it, rounding in double precision hides the residual."""
VANISHING = 1e-12
"""A hypergradient so much smaller than its parts is rounding."""


class Verdict(Enum):
    """The outcomes of a diagnosis.

    Example:
        >>> Verdict.HOMOGENEOUS.name
        'HOMOGENEOUS'
    """

    HOMOGENEOUS = (
        "homogeneous enough: the mean of the devices' own hypergradients is within the "
        "tolerance of the global one, so LocalBSGM, LocalBSGVRM and LFedNest may be "
        "used; LocalBSGVRM needs the fewest samples in theory."
    )
    HETEROGENEOUS = (
        "heterogeneous: the mean of the devices' own hypergradients points elsewhere "
        "than the global one, so LocalBSGM, LocalBSGVRM and LFedNest would settle at a "
        "biased point; use AutoFedBiO (auto in a file), FedBiO, FedBiOAcc, SimFBO or "
        "FedNest, or ShroFBO where devices make unequal numbers of local steps."
    )
    UNCLEAR = "unclear"


class Diagnosis(NamedTuple):
    """How far the mean of own hypergradients is from the global one (Lemma 1).

    Attributes:
        distance: ‖mean own − global‖ at (x, y*(x)), relative to the longer of the
            global hypergradient and its indirect part J̄ H̄⁻¹ b̄; not a number where a
            solve failed.
        low: the distance is at least this, by the bound of the solves' error.
        high: the distance is at most this.
        tolerance: the distance that counts as small.
        residual: that the global adjoint's solve left, relative to ∇y f̄.
        own_residual: the mean of what the devices' own solves left, relative to ∇y f_k.
        obstacle: why there is no verdict; None where there is one.
        costs: what the diagnosis has spent. Samples are counted as if each device had
            as many examples as the first.

    Example:
        >>> Diagnosis(0.5, low=0.4, high=0.6, tolerance=0.1).verdict.name
        'HETEROGENEOUS'
        >>> Diagnosis(0.1, low=0.0, high=0.2, tolerance=0.1).verdict.name
        'UNCLEAR'
    """

    distance: float
    low: float
    high: float
    tolerance: float
    residual: float = 0.0
    own_residual: float = 0.0
    obstacle: Obstacle | None = None
    costs: Costs = Costs()

    @property
    def verdict(self) -> Verdict:
        """Whether devices are homogeneous enough, as far as the solves show."""
        if self.obstacle is not None:
            return Verdict.UNCLEAR
        if self.low > self.tolerance:
            return Verdict.HETEROGENEOUS
        return Verdict.HOMOGENEOUS if self.high <= self.tolerance else Verdict.UNCLEAR

    def __str__(self) -> str:
        if self.obstacle is not None:
            return f"The answer is unclear: {self.obstacle}"
        return (
            f"The relative distance is {self.distance:.3g}, between {self.low:.3g} and "
            f"{self.high:.3g} (tolerance {self.tolerance:g}). "
            f"This federation is {self.verdict.value}"
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
    weights: ArrayLike | None = None,
    engine: Engine = Simulation(),
    report: Callable[[DiagnosisProgress], None] = lambda progress: None,
) -> Diagnosis:
    """Measure, at a point, how far the paper's homogeneity assumption is from true.

    Lemma 1 lets every device use its own inverse Hessian, because all have the same.
    Elsewhere mean(J_k H_k⁻¹ b_k) differs from J̄ H̄⁻¹ b̄, and the paper's algorithms
    follow the former. Both are solved by conjugate gradients, the one by each device,
    the other over exchanges in which devices share Hessian products. Devices use all of
    their examples, so there is no sampling noise; the limits of the distance come from
    the residuals that both solves leave, measured by products of their own, and from
    the error of y*(x). All is computed in double precision.

    y*(x) is found first, by Newton steps from y, until what its error adds to the
    limits is negligible or rounding hides the gradient. All devices are asked, since a
    sample of them has an inverse Hessian of its own. The answer holds near x: ask again
    at the end of a run.

    Args:
        problem: the two losses, means over their batches.
        devices: the data.
        x: the point.
        y: where the search for y*(x) begins.
        survey: how far to solve.
        tolerance: the relative distance that counts as small.
        seed: of the vectors that bound errors, and of the engine if it has one.
        weights: of the devices, as given to `run`.
        engine: where the devices' work is done.
        report: is called after each exchange with how far the diagnosis is.

    Raises:
        ValueError: if the tolerance is not above zero.
        ArithmeticError: if an answer is not finite, y*(x) cannot be found, or the
            hypergradient vanishes.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
        >>> from fedbilevel.metrics import diagnose
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean(batch * y**2 / 2 - x * y),
        ... )
        >>> one, four = np.ones(1), np.full(1, 4.0)
        >>> alike = InMemoryDevices([LocalExamples(one, one)] * 2)
        >>> apart = InMemoryDevices([LocalExamples(one, one), LocalExamples(one, four)])
        >>> for devices in (alike, apart):
        ...     print(diagnose(problem, devices, 3.0, 0.0).verdict.name)
        HOMOGENEOUS
        HETEROGENEOUS
    """
    if not tolerance > 0:
        raise ValueError(f"diagnose needs tolerance above 0, but it is {tolerance}.")
    with jax.enable_x64(True):
        inquiry = QuerySession(
            _in_double(problem),
            survey,
            devices,
            _double(x),
            _double(y),
            seed=seed,
            weights=weights,
            engine=engine,
        )
        solves = FederatedSolves(inquiry, survey, report)
        try:
            found = _measured(solves, tolerance)
        except ObstacleError as error:
            nothing = float("nan")
            found = Diagnosis(nothing, 0.0, inf, tolerance, obstacle=error.obstacle)
        return found._replace(costs=inquiry.costs)


def _measured(solves: FederatedSolves, tolerance: float) -> Diagnosis:
    server = lower_solution(solves, solves.inquiry.server)
    residuals = [solves.survey.residual] * 2
    for _ in range(PASSES):
        server = solves.inquiry.ask(Question.UPPER, server)
        curvature = solves.curvature(server)
        ours, z = solves.adjoint(server, curvature.factor, residuals[0])
        own = solves.own_adjoints(server, residuals[1])
        lower = lower_errors(solves, server, curvature, z, ours, own, residuals[1])
        found = _compared(server.direct, ours, own, lower, tolerance)
        goal = SMALL * tolerance * _size(server.direct, ours.indirect)
        before = server
        if lower.total > SMALL * goal:
            # The error of y, and what follows from it, are proportional to ‖∇y ḡ‖.
            server = refine(solves, server, SMALL**2 * goal / lower.total)
        if found.obstacle is None and server is before:
            return found
        # The bounds are proportional to the residuals.
        residuals = [
            max(SMALLEST_RESIDUAL, residual * min(1, goal / (4 * part.error + 1e-300)))
            for residual, part in zip(residuals, (ours, own), strict=True)
        ]
    return found


def _compared(
    direct: Upper, ours: Adjoint, own: Adjoint, lower: LowerErrors, tolerance: float
) -> Diagnosis:
    size = _size(direct, ours.indirect)
    if size <= VANISHING * max(norm(direct), norm(ours.indirect), norm(own.indirect)):
        raise ArithmeticError(
            "the hypergradient vanishes here, so that no distance is relative to it; "
            "ask at another point."
        )
    # ∇x f̄ is the same in both hypergradients.
    difference = norm(tree.subtract(own.indirect, ours.indirect))
    solved = ours.error + own.error
    error = solved + lower.indirect + lower.own
    size_error = ours.error + lower.indirect + lower.direct
    distance = difference / size
    low = max(0.0, difference - error) / (size + size_error)
    high = (difference + error) / (size - size_error) if size_error < size else inf
    allowed = max(SMALL * tolerance, 0.5 * distance) * size
    obstacle = None
    if low <= tolerance < high or max(error, size_error) > allowed:
        obstacle = Obstacle(
            Cause.REMAINDER, Stage.OWN, max(ours.residual, own.residual)
        )
        if lower.total > solved:
            obstacle = Obstacle(Cause.REMAINDER, Stage.LOWER, lower.residual)
    return Diagnosis(
        distance, low, high, tolerance, ours.residual, own.residual, obstacle
    )


def _size(direct: Upper, indirect: Upper) -> float:
    return max(norm(tree.subtract(direct, indirect)), norm(indirect))


def _in_double(problem: BilevelProblem) -> BilevelProblem:
    return BilevelProblem(
        _InDouble(problem.upper_loss),
        _InDouble(problem.lower_loss),
        upper_gradients=_InDouble(problem.upper_gradients),
        lower_gradient=_InDouble(problem.lower_gradient),
        lower_gradient_x=_InDouble(problem.lower_gradient_x),
        hessian_product=_InDouble(problem.hessian_product),
        cross_product=_InDouble(problem.cross_product),
    )


# Examples are mostly stored in single precision. A dataclass and not a closure, so that
# a second diagnosis of the same problem compiles nothing.
@dataclass(frozen=True)
class _InDouble:
    oracle: Callable[..., Any]

    def __call__(self, x: Upper, y: Lower, batch: Batch, *vector: Lower) -> Any:
        def cast(leaf: Array) -> Array:
            floating = jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(jnp.float64) if floating else leaf

        return self.oracle(x, y, jax.tree.map(cast, batch), *vector)


def _double(variable: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), variable)
