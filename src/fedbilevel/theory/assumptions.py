"""The constants of the paper's assumptions."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Assumptions:
    """The constants of Assumptions 1 to 3, which determine every bound.

    Attributes:
        strong_convexity: μ of the lower loss in y.
        upper_lipschitz: L_0, Lipschitz constant of the upper loss.
        gradient_lipschitz: L_1, Lipschitz constant of the gradients of both losses.
        cross_lipschitz: L_21, Lipschitz constant of ∇²xy g.
        curvature_lipschitz: L_22, Lipschitz constant of ∇²yy g.
        deviation: σ, the standard deviation of a sampled ∇g.
    """

    strong_convexity: float
    upper_lipschitz: float
    gradient_lipschitz: float
    cross_lipschitz: float = 0.0
    curvature_lipschitz: float = 0.0
    deviation: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.strong_convexity <= self.gradient_lipschitz:
            raise ValueError(
                f"strong_convexity μ is {self.strong_convexity}, expected a number "
                "above 0 and at most gradient_lipschitz "
                f"L_1={self.gradient_lipschitz}, since both bound the same Hessian."
            )

    @property
    def symbols(self) -> tuple[float, float, float, float, float]:
        """(μ, L_0, L_1, L_21, L_22), for formulas."""
        return (
            self.strong_convexity,
            self.upper_lipschitz,
            self.gradient_lipschitz,
            self.cross_lipschitz,
            self.curvature_lipschitz,
        )


def combine_assumptions(assumptions: Sequence[Assumptions]) -> Assumptions:
    """Return the smallest μ and the largest other constants of several.

    Example:
        >>> estimates = Assumptions(0.5, 1.0, 2.0), Assumptions(0.2, 3.0, 1.0)
        >>> combine_assumptions(estimates)
        Assumptions(strong_convexity=0.2, upper_lipschitz=3.0, gradient_lipschitz=2.0,
                    cross_lipschitz=0.0, curvature_lipschitz=0.0, deviation=0.0)
    """
    return Assumptions(
        min(each.strong_convexity for each in assumptions),
        max(each.upper_lipschitz for each in assumptions),
        max(each.gradient_lipschitz for each in assumptions),
        max(each.cross_lipschitz for each in assumptions),
        max(each.curvature_lipschitz for each in assumptions),
        max(each.deviation for each in assumptions),
    )
