"""ShroFBO: SimFBO without the bias of unequal numbers of local steps."""

from dataclasses import dataclass, fields

from fedbilevel.algorithms.adjoint import initial_point
from fedbilevel.algorithms.protocol import Phase, Private
from fedbilevel.algorithms.simfbo import SimFBO, SimFBOState, accumulation_phase
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.mathematics import schedules
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    AdjointRate,
    BatchSize,
    Count,
    Fraction,
    LocalSteps,
    LowerRate,
    Rate,
    ServerRate,
    UpperRate,
    register,
)


@register
@dataclass(frozen=True)
class ShroFBO:
    """`SimFBO` with each upload divided by the device's sum of step weights.

    A device uploads q_i / ‖a_i‖₁, the weighted mean of its directions, and ‖a_i‖₁; the
    server moves along (Σ_j p_j ‖a_j‖₁) · Σ_i p_i q_i / ‖a_i‖₁. To first order in the
    rates, q_i / ‖a_i‖₁ is the device's direction at the server's point for any number
    of steps, so the mean vanishes at ∇Φ = 0 of the problem with the weights p_i. The
    common factor keeps `SimFBO`'s step length.

    Attributes:
        learning_rate: factor of all three rates; a number or a schedule of the global
            step, constant within a round.
        upper_rate: rate of local steps on x.
        lower_rate: rate of local steps on y.
        adjoint_rate: rate of local steps on z.
        server_rate: the server's rate divided by the local rate.
        discount: a_i^k = discount^k; with 1 all steps have equal weight.
        adjoint_radius: r, radius of the ball for the server's z.
        local_steps: largest number of local steps of a device.
        batch_size: examples in each of the four batches of a step.
        examples_per_step: if given, a device with n lower examples makes
            min(local_steps, ⌈n / examples_per_step⌉) local steps.

    References:
        Yang, Xiao and Ji, SimFBO: Towards Simple, Flexible and Communication-efficient
        Federated Bilevel Learning, arXiv 2305.19442.
    """

    learning_rate: schedules.LearningRate
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    adjoint_rate: AdjointRate = 1.0
    server_rate: ServerRate = 1.0
    discount: Fraction = 1.0
    adjoint_radius: Rate | None = None
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    examples_per_step: Count | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[SimFBOState, Private]:
        """Return (x, y, 0); devices have no private state."""
        return SimFBOState(*initial_point(x, y), step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: the first round is like all others."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: local steps, then the server's step."""
        shared = SimFBO(**{f.name: getattr(self, f.name) for f in fields(SimFBO)})
        return (accumulation_phase(shared, problem, normalised=True),)
