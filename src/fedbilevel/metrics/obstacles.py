"""How far a diagnosis is, and what may keep it from a verdict."""

from enum import Enum
from typing import NamedTuple


class Stage(Enum):
    """The parts of a diagnosis, in their order.

    Example:
        >>> Stage.ADJOINT.value
        'global adjoint'
    """

    LOWER = "lower problem"
    CURVATURE = "smallest curvature"
    ADJOINT = "global adjoint"
    OWN = "devices' own adjoints"


class Cause(Enum):
    """The reasons why a diagnosis has no verdict.

    Example:
        >>> Cause.NOT_CONVERGED.name
        'NOT_CONVERGED'
    """

    NEGATIVE_CURVATURE = "negative curvature"
    """The lower loss has a direction whose curvature is not above zero."""
    NOT_CONVERGED = "not converged"
    """A solve used up its products."""
    REMAINDER = "remainder"
    """The bound of the error, of the solves or of y*(x), is too large."""


class Obstacle(NamedTuple):
    """Why a diagnosis has no verdict.

    Attributes:
        cause: the kind of reason.
        stage: where it was met.
        residual: the relative residual that was left.
        needed: about how many products a solve takes, where too few were allowed.
        curvature: the curvature that is not above zero, where there is one.
        devices: the share of the devices' weight that the obstacle was met on.

    Example:
        >>> print(Obstacle(Cause.NOT_CONVERGED, Stage.ADJOINT, 1e-3, needed=900))
        the solve of the global adjoint has not converged: its relative residual is
        0.001. About 900 Hessian products are needed; raise products of the Survey.
    """

    cause: Cause
    stage: Stage
    residual: float
    needed: int | None = None
    curvature: float | None = None
    devices: float = 1.0

    def __str__(self) -> str:
        where = ""
        if self.stage is Stage.OWN:
            where = f" on {self.devices:.0%} of the devices (by weight)"
        if self.cause is Cause.NEGATIVE_CURVATURE:
            assert self.curvature is not None
            return (
                f"the lower loss is not strongly convex in y{where}: it has negative "
                f"or no curvature, {self.curvature:.3g} along a direction, where every "
                "algorithm assumes curvature above zero. Add a penalty on y to "
                "lower_loss, such as c·‖y‖²/2 with c well above "
                f"{max(0.0, -self.curvature):.3g}, or ask at a point where y is nearer "
                "to a minimum."
            )
        if self.cause is Cause.NOT_CONVERGED:
            return (
                f"the solve of the {self.stage.value} has not converged{where}: its "
                f"relative residual is {self.residual:.2g}. About {self.needed} "
                "Hessian products are needed; raise products of the Survey."
            )
        if self.stage is Stage.LOWER:
            return (
                "the error of y*(x) is too large beside the tolerance: ‖∇y g‖ is down "
                f"to {self.residual:.2g} relative to its terms, but the lower loss is "
                "too ill-conditioned to conclude from it. Add a penalty on y to "
                "lower_loss, or raise the tolerance."
            )
        return (
            "the remainder of the solves is too large beside the tolerance: relative "
            f"residuals are down to {self.residual:.2g}, but the lower loss is too "
            "ill-conditioned to conclude from them. Add a penalty on y to lower_loss, "
            "or raise the tolerance."
        )


class ObstacleError(ArithmeticError):
    """A solve that cannot be done.

    Example:
        >>> raised = ObstacleError(Obstacle(Cause.REMAINDER, Stage.OWN, 1e-9))
        >>> raised.obstacle.stage.name
        'OWN'
    """

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(str(obstacle))
        self.obstacle = obstacle


class DiagnosisProgress(NamedTuple):
    """How far a diagnosis is.

    Attributes:
        stage: what is being solved.
        exchanges: with all devices so far.
        residual: of the solve, relative to its right-hand side.
        goal: the residual at which it is done.

    Example:
        >>> DiagnosisProgress(Stage.LOWER, 3, residual=0.1, goal=1e-9).exchanges
        3
    """

    stage: Stage
    exchanges: int
    residual: float
    goal: float
