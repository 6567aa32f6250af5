"""Progress of a diagnosis, and the reasons why it may have no verdict."""

from enum import Enum
from typing import NamedTuple


class Stage(Enum):
    """The stages of a diagnosis, in their order."""

    LOWER = "lower problem"
    CURVATURE = "smallest curvature"
    ADJOINT = "global adjoint"
    LOCAL = "devices' local adjoints"


class ObstacleCause(Enum):
    """The types of reasons why a diagnosis has no verdict."""

    NEGATIVE_CURVATURE = "negative curvature"
    """The lower loss has a direction whose curvature is not above zero."""
    NOT_CONVERGED = "not converged"
    """A solve reached its largest number of products."""
    REMAINDER = "remainder"
    """The bound on the error of the solves or of y*(x) is too large."""


class Obstacle(NamedTuple):
    """The reason why a diagnosis has no verdict.

    Attributes:
        cause: type of the reason.
        stage: stage of the diagnosis.
        residual: relative residual at the end of the solve.
        needed: approximate number of products that the solve needs, if the allowed
            number was too small.
        curvature: curvature that is not above zero, if there is one.
        devices: share of the devices (by weight) with the obstacle.

    Example:
        >>> cause = ObstacleCause.NOT_CONVERGED
        >>> print(Obstacle(cause, Stage.ADJOINT, 1e-3, needed=900))
        The solve of the global adjoint did not converge: its relative residual is
        0.001. It needs about 900 Hessian products: raise products of the Survey.
    """

    cause: ObstacleCause
    stage: Stage
    residual: float
    needed: int | None = None
    curvature: float | None = None
    devices: float = 1.0

    def __str__(self) -> str:
        where = ""
        if self.stage is Stage.LOCAL:
            where = f" on {self.devices:.0%} of the devices (by weight)"
        if self.cause is ObstacleCause.NEGATIVE_CURVATURE:
            assert self.curvature is not None
            return (
                f"The lower loss is not strongly convex in y{where}: its curvature "
                f"along a direction is {self.curvature:.3g}, but every algorithm "
                "assumes curvature above zero. Add a penalty on y to lower_loss, such "
                f"as c·‖y‖²/2 with c well above {max(0.0, -self.curvature):.3g}, or "
                "pass a y nearer to a minimum."
            )
        if self.cause is ObstacleCause.NOT_CONVERGED:
            return (
                f"The solve of the {self.stage.value} did not converge{where}: its "
                f"relative residual is {self.residual:.2g}. It needs about "
                f"{self.needed} Hessian products: raise products of the Survey."
            )
        if self.stage is Stage.LOWER:
            return (
                "The error of y*(x) is too large for the tolerance: ‖∇y g‖ is "
                f"{self.residual:.2g} relative to its terms, but the lower loss is too "
                "ill-conditioned. Add a penalty on y to lower_loss, or raise the "
                "tolerance."
            )
        return (
            "The error of the solves is too large for the tolerance: relative "
            f"residuals are {self.residual:.2g}, but the lower loss is too "
            "ill-conditioned. Add a penalty on y to lower_loss, or raise the tolerance."
        )


class ObstacleError(ArithmeticError):
    """A solve of a diagnosis failed, with the obstacle as reason."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(str(obstacle))
        self.obstacle = obstacle


class DiagnosisProgress(NamedTuple):
    """The progress of a diagnosis.

    Attributes:
        stage: current stage.
        exchanges: number of exchanges with all devices so far.
        residual: residual of the current solve, relative to its right-hand side.
        goal: residual at which the solve ends.
    """

    stage: Stage
    exchanges: int
    residual: float
    goal: float
