"""FedBiO: local steps on x, y and the adjoint z at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import PyTree

from fedbilevel.algorithms.adjoint import (
    AdjointPoint,
    descend,
    directions,
    initial_point,
)
from fedbilevel.algorithms.optional import LOCAL_HYPERGRADIENT, Conflict
from fedbilevel.algorithms.protocol import (
    Carry,
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    AdjointRate,
    BatchSize,
    LocalSteps,
    LowerRate,
    Rate,
    Switch,
    UpperRate,
    register,
)


class FedBiOState(NamedTuple):
    """(x, y, z) and the number of steps so far."""

    x: Upper
    y: Lower
    adjoint: Lower
    step: schedules.Step


@register
@dataclass(frozen=True)
class FedBiO:
    """Steps on x, y and the adjoint z at once, averaged every `local_steps` steps.

    Every local step computes, at its initial point (x, y, z),

        y ← y − γ ∇y g,   x ← x − η (∇x f − J z),   z ← Proj_r(z − τ (H z − ∇y f)).

    It is correct on heterogeneous devices: the three directions are linear in the local
    derivatives, so their means over devices vanish together where ∇y ḡ = 0,
    z = H̄⁻¹ ∇y f̄ and ∇x f̄ − J̄ z = 0, that is ∇Φ = 0. With one local step per exchange
    the averaged run equals that of one machine with all data; with several, devices
    drift apart by an amount that vanishes with the rates. With one device it is the
    single-machine method SOBA.

    Attributes:
        learning_rate: factor of all three rates; a number or a schedule.
        upper_rate: η / learning_rate.
        lower_rate: γ / learning_rate.
        adjoint_rate: τ / learning_rate.
        adjoint_radius: r, radius of the ball for z; with r = L_0 / μ the ball contains
            the solution.
        local_steps: I, steps between two exchanges.
        batch_size: examples in each of the four batches of a step.
        private_lower: keep y and z on the device, which then solves its local lower
            problem: min_x 1/K Σ_k f_k(x, y_k*(x)), another problem than the global one.
            The server's y and z keep their initial values; those of the devices are in
            `Round.private`.

    References:
        Li, Huang and Huang, Communication-Efficient Federated Bilevel Optimization with
        Local and Global Lower Level Problems, arXiv 2302.06701.
    """

    learning_rate: schedules.LearningRate
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    adjoint_rate: AdjointRate = 1.0
    adjoint_radius: Rate | None = None
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    private_lower: Switch = False

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """With `private_lower`, every device needs lower examples."""
        reason = LOCAL_HYPERGRADIENT.format(name="FedBiO with private_lower")
        return {Conflict.UPPER_ONLY: reason} if self.private_lower else {}

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[FedBiOState, Private]:
        """Return (x, y, 0), and the private state (y, 0) if `private_lower` is set."""
        point = initial_point(x, y)
        private = (point.y, point.adjoint) if self.private_lower else ()
        return FedBiOState(*point, step=0), private

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return no phases: the first round is like all others."""
        return ()

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: local steps, then an average."""

        def broadcast(server: FedBiOState) -> Downlink:
            x, y, z, step = server
            return (x if self.private_lower else AdjointPoint(x, y, z)), step

        def start(
            downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
        ) -> Carry:
            received, step = downlink
            if self.private_lower:
                return AdjointPoint(received, *private), step
            return received, step

        def step(carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
            point, t = carry
            eta = schedules.rate_at(self.learning_rate, t)
            along = directions(problem, point, draw_samples(data, key, self.batch_size))
            rates = AdjointPoint(
                self.upper_rate * eta, self.lower_rate * eta, self.adjoint_rate * eta
            )
            return descend(point, rates, along, self.adjoint_radius), t + 1

        def finish(
            carry: Carry, downlink: Downlink, key: RandomKey
        ) -> tuple[Upload, Private, Info]:
            point, _ = carry
            if self.private_lower:
                return Upload((point.x,)), (point.y, point.adjoint), {}
            return Upload(point), (), {}

        def server(server: FedBiOState, mean: Upload, key: RandomKey) -> FedBiOState:
            step = server.step + self.local_steps
            mean_x, *others = mean.update
            x = tree.keep_fixed(self.upper_rate, server.x, mean_x)
            if self.private_lower:
                return server._replace(x=x, step=step)
            y, z = others
            return FedBiOState(x, y, z, step)

        def reference(downlink: Downlink) -> tuple[PyTree, ...]:
            received, _ = downlink
            return (received,) if self.private_lower else received

        phase = Phase(
            name="local steps",
            steps=self.local_steps,
            broadcast=broadcast,
            start=start,
            step=step,
            finish=finish,
            server=server,
            reference=reference,
        )
        return (phase,)
