"""The error of y*(x), and the errors of hypergradients that it causes."""

from typing import NamedTuple

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import Lower
from fedbilevel.metrics.federated_solves import (
    Adjoint,
    Curvature,
    FederatedSolves,
    norm,
)
from fedbilevel.metrics.survey import Question, SurveyState

ROUNDING = 1e-15
"""The error of a gradient in double precision, relative to the terms that cancel."""
DISPLACEMENT = 1e-6
"""The smallest displacement of y for finite differences, relative to ‖y‖."""


class LowerErrors(NamedTuple):
    """Bounds on the errors that the error of y*(x) causes.

    Attributes:
        direct: bound on the error of ∇x f̄.
        indirect: bound on the error of J̄ H̄⁻¹ ∇y f̄.
        local: bound on the error of the mean of J_k H_k⁻¹ ∇y f_k.
        residual: ‖∇y ḡ‖, relative to the terms that cancel in it.

    Example:
        >>> LowerErrors(direct=0.5, indirect=1.0, local=2.0, residual=1e-9).total
        3.5
    """

    direct: float = 0.0
    indirect: float = 0.0
    local: float = 0.0
    residual: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the three bounds."""
        return self.direct + self.indirect + self.local


def lower_errors(
    solves: FederatedSolves,
    server: SurveyState,
    curvature: Curvature,
    z: Lower,
    shared: Adjoint,
    local: Adjoint,
    local_residual: float,
) -> LowerErrors:
    """Return the errors of a diagnosis that the error of y*(x) causes.

    The error of y is H̄⁻¹ times ∇y ḡ, which is known up to rounding. Hypergradients are
    measured again at a y displaced along directions of low curvature, in which the
    error is largest, and the change is scaled to the largest error of y.

    Args:
        solves: the solves over exchanges.
        server: state near y*(x), with ∇y ḡ, ∇x f̄ and ∇y f̄.
        curvature: bounds on the inverse Hessian at this state.
        z: global adjoint at this state.
        shared: J̄ z and its error.
        local: mean of the devices' local adjoints at this state.
        local_residual: residual at which the devices' solves end.

    Raises:
        ObstacleError: if the solve of a device fails at the displaced y.
    """
    size, terms = norm(server.gradient), solves.gradient_terms(server)
    slope = size + ROUNDING * terms
    if not slope:
        return LowerErrors()
    weak = norm(curvature.weak)
    error = slope * max(curvature.inverse_bound, weak)
    # With a displacement longer than the error, the change exceeds the solves' errors.
    length = max(error, DISPLACEMENT * norm(server.y))
    scale = error / length
    moved = server._replace(y=tree.add_scaled(server.y, length / weak, curvature.weak))
    moved = solves.session.ask(Question.UPPER, moved)
    rest = tree.subtract(server.right_side, solves.product(server, z))
    moved_rest = tree.subtract(moved.right_side, solves.product(moved, z))
    indirect = norm(tree.subtract(solves.cross(moved, z), shared.indirect))
    indirect += curvature.factor * norm(tree.subtract(moved_rest, rest))
    moved_local = solves.local_adjoints(moved, local_residual)
    return LowerErrors(
        direct=scale * norm(tree.subtract(moved.direct, server.direct)),
        indirect=scale * indirect,
        local=scale * norm(tree.subtract(moved_local.indirect, local.indirect)),
        residual=size / terms,
    )
