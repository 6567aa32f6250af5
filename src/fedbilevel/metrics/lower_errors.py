"""The error of y*(x), and the errors of hypergradients that follow from it."""

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
"""Of y, relative to it: derivatives are differences over at least this."""


class LowerErrors(NamedTuple):
    """Bounds of the errors that the error of y*(x) causes.

    Attributes:
        direct: of the error of ∇x f̄.
        indirect: of the error of J̄ H̄⁻¹ ∇y f̄.
        own: of the error of the mean of J_k H_k⁻¹ ∇y f_k.
        residual: ‖∇y ḡ‖, relative to the terms that cancel in it.

    Example:
        >>> LowerErrors(direct=0.5, indirect=1.0, own=2.0, residual=1e-9).total
        3.5
    """

    direct: float = 0.0
    indirect: float = 0.0
    own: float = 0.0
    residual: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all three."""
        return self.direct + self.indirect + self.own


def lower_errors(
    solves: FederatedSolves,
    server: SurveyState,
    curvature: Curvature,
    z: Lower,
    ours: Adjoint,
    own: Adjoint,
    own_residual: float,
) -> LowerErrors:
    """Return what the error of y*(x) contributes to the errors of a diagnosis.

    The error of y is H̄⁻¹ times ∇y ḡ, the latter up to rounding. Hypergradients are
    measured again at a y displaced along directions with little curvature, in which
    that error is largest, and the change is scaled to the largest error of y.

    Args:
        solves: the exchanges.
        server: near y*(x), with ∇y ḡ, ∇x f̄ and ∇y f̄.
        curvature: of the mean lower loss there.
        z: the global adjoint there.
        ours: J̄ z.
        own: the devices' own adjoints there.
        own_residual: to which they were solved.

    Raises:
        ObstacleError: if a device cannot solve its own at the displaced y.

    Example:
        >>> lower_errors.__name__
        'lower_errors'
    """
    size, terms = norm(server.gradient), solves.gradient_terms(server)
    slope = size + ROUNDING * terms
    if not slope:
        return LowerErrors()
    weak, at = norm(curvature.weak), norm(server.y)
    error = slope * max(curvature.inverse_bound, weak)
    # A longer displacement than the error lifts the change above the solves' errors.
    length = max(error, DISPLACEMENT * at)
    scale = error / length
    aside = server._replace(y=tree.add_scaled(server.y, length / weak, curvature.weak))
    aside = solves.inquiry.ask(Question.UPPER, aside)
    rest = tree.subtract(server.right_side, solves.product(server, z))
    rest_aside = tree.subtract(aside.right_side, solves.product(aside, z))
    indirect = norm(tree.subtract(solves.cross(aside, z), ours.indirect))
    indirect += curvature.factor * norm(tree.subtract(rest_aside, rest))
    own_aside = solves.own_adjoints(aside, own_residual)
    return LowerErrors(
        direct=scale * norm(tree.subtract(aside.direct, server.direct)),
        indirect=scale * indirect,
        own=scale * norm(tree.subtract(own_aside.indirect, own.indirect)),
        residual=size / terms,
    )
