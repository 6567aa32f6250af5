"""F²SA: a first-order method with a penalty in place of second derivatives."""

from dataclasses import dataclass
from typing import NamedTuple

from fedbilevel.algorithms.protocol import Carry, Downlink, Info, Phase, Private, Upload
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    BatchSize,
    LocalSteps,
    LowerRate,
    Rate,
    UpperRate,
    register,
)


class F2SAState(NamedTuple):
    """(x, y, w) and the number of steps so far."""

    x: Upper
    y: Lower
    penalised: Lower
    step: schedules.Step


@register
@dataclass(frozen=True)
class F2SA:
    """Gradient steps on x, y and w at once, without second derivatives.

    y descends g, and w descends f + λg. Every local step computes, at its initial point
    (x, y, w),

        y ← y − γ ∇y g(x, y),   w ← w − γ (∇y g(x, w) + ∇y f(x, w) / λ),
        x ← x − η (∇x f(x, w) + λ (∇x g(x, w) − ∇x g(x, y))).

    Once y and w have converged, the direction of x is the gradient of
    min_w (f + λg) − λ min_y g, which differs from the hypergradient by O(1 / λ). All
    directions are linear in the local gradients, so with one local step per exchange
    the averaged run equals that of one machine with all data, even on heterogeneous
    devices.

    A large λ makes the bias small and multiplies the sampling noise of ∇x g(x, w) −
    ∇x g(x, y). Both gradients use the same batch, so the noise shrinks as w approaches
    y.

    Attributes:
        learning_rate: factor of both rates; a number or a schedule.
        multiplier: λ.
        upper_rate: η / learning_rate.
        lower_rate: γ / learning_rate, for y and for w.
        local_steps: steps between two exchanges.
        batch_size: examples in each of the three batches of a step.

    References:
        Kwon, Kwon, Wright and Nowak, A Fully First-Order Method for Stochastic Bilevel
        Optimization, arXiv 2301.10945; λ is constant here.
    """

    learning_rate: schedules.LearningRate
    multiplier: Rate = 10.0
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1

    def __post_init__(self) -> None:
        check_settings(self)

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[F2SAState, Private]:
        """Return (x, y, y); devices have no private state."""
        return F2SAState(x, y, y, step=0), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: the first round is like all others."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: local steps, then an average."""

        def step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
            x, y, w, t = carry
            xi, zeta, zeta_0, _ = draw_samples(
                data, key, self.batch_size, curvature_draws=0
            )
            eta = schedules.rate_at(self.learning_rate, t)
            above_x, above_y = problem.upper_gradients(x, w, xi)
            excess = tree.subtract(
                problem.lower_gradient_x(x, w, zeta_0),
                problem.lower_gradient_x(x, y, zeta_0),
            )
            along_x = tree.add_scaled(above_x, self.multiplier, excess)
            along_w = tree.add_scaled(
                problem.lower_gradient(x, w, zeta), 1 / self.multiplier, above_y
            )
            along_y = problem.lower_gradient(x, y, zeta)
            return F2SAState(
                tree.add_scaled(x, -self.upper_rate * eta, along_x),
                tree.add_scaled(y, -self.lower_rate * eta, along_y),
                tree.add_scaled(w, -self.lower_rate * eta, along_w),
                t + 1,
            )

        def finish(
            carry: Carry, downlink: Downlink, key: RandomKey
        ) -> tuple[Upload, Private, Info]:
            return Upload(carry[:3]), (), {}

        def server(server: F2SAState, mean: Upload, key: RandomKey) -> F2SAState:
            mean_x, y, w = mean.update
            x = tree.keep_fixed(self.upper_rate, server.x, mean_x)
            return F2SAState(x, y, w, server.step + self.local_steps)

        return (
            Phase(
                name="local steps",
                steps=self.local_steps,
                broadcast=lambda server: server,
                start=lambda downlink, private, data, key: downlink,
                step=step,
                finish=finish,
                server=server,
                reference=lambda downlink: downlink[:3],
            ),
        )
