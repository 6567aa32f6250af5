"""FedBiOAcc: FedBiO with momentum-based variance reduction of its three directions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, PyTree

from fedbilevel.algorithms.adjoint import (
    AdjointPoint,
    descend,
    directions,
    initial_point,
)
from fedbilevel.algorithms.momentum import corrected
from fedbilevel.algorithms.optional import LOCAL_HYPERGRADIENT, Conflict
from fedbilevel.algorithms.protocol import (
    Downlink,
    Info,
    Phase,
    Private,
    Upload,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import arrays, schedules, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    AdjointRate,
    BatchSize,
    Count,
    LocalSteps,
    LowerRate,
    Rate,
    SquaredMixing,
    Switch,
    UpperRate,
    register,
)


class FedBiOAccState(NamedTuple):
    """(x, y, z), the estimates of their directions, and the number of steps so far.

    Attributes:
        x: upper variable.
        y: lower variable.
        adjoint: z.
        directions: estimated directions of x, y and z.
        step: t.
        origin: the x of the estimates, if a server optimiser moves x afterwards.
    """

    x: Upper
    y: Lower
    adjoint: Lower
    directions: AdjointPoint
    step: schedules.Step
    origin: Upper | None = None


class _Update(NamedTuple):
    x: Upper
    y: Lower
    adjoint: Lower
    upper_direction: Upper
    lower_direction: Lower
    adjoint_direction: Lower


class _Work(NamedTuple):
    point: AdjointPoint
    along: AdjointPoint
    step: schedules.Step
    fresh: Float[Array, "*devices"]  # 0 if the local estimates are missing or stale
    origin: Upper | None


@register
@dataclass(frozen=True)
class FedBiOAcc:
    """`FedBiO` with momentum-based variance reduction of its three directions.

    With G(point; B) the directions on batch B and a_t the learning rate, a step is

        point⁺ = point − rates · a_t · m,   z⁺ projected,
        m⁺ = G(point⁺; B) + (1 − c a_t²)(m − G(point; B)).

    The error e = m − Ḡ(point) with respect to the mean direction Ḡ obeys
    e⁺ = (1 − c a²) e + noise of order c a² and of the step length, so m tracks Ḡ. Ḡ is
    the direction of `FedBiO`, which vanishes only at ∇Φ = 0, even on heterogeneous
    devices. Variables and estimates are both averaged every `local_steps` steps.

    Attributes:
        learning_rate: a_t, a number or a schedule.
        upper_rate: factor of a_t for x.
        lower_rate: factor of a_t for y.
        adjoint_rate: factor of a_t for z.
        upper_mixing: c of x; c a_t² is the weight that the old estimate loses.
        lower_mixing: c of y.
        adjoint_mixing: c of z.
        adjoint_radius: r, radius of the ball for z.
        local_steps: I, steps between two exchanges.
        batch_size: examples in each of the four batches of a step.
        initial_batch_size: examples in each batch of the first estimates.
        private_lower: keep y, z and their estimates on the device, as in `FedBiO`.

    References:
        Li, Huang and Huang, Communication-Efficient Federated Bilevel Optimization with
        Local and Global Lower Level Problems, arXiv 2302.06701.
    """

    learning_rate: schedules.LearningRate
    upper_rate: UpperRate = 1.0
    lower_rate: LowerRate = 1.0
    adjoint_rate: AdjointRate = 1.0
    upper_mixing: SquaredMixing = 1.0
    lower_mixing: SquaredMixing = 1.0
    adjoint_mixing: SquaredMixing = 1.0
    adjoint_radius: Rate | None = None
    local_steps: LocalSteps = 1
    batch_size: BatchSize = 1
    initial_batch_size: Count = 1
    private_lower: Switch = False

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """With `private_lower`, every device needs lower examples."""
        reason = LOCAL_HYPERGRADIENT.format(name="FedBiOAcc with private_lower")
        return {Conflict.UPPER_ONLY: reason} if self.private_lower else {}

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[FedBiOAccState, Private]:
        """Return (x, y, 0) without estimates, and the private state of each device."""
        point = initial_point(x, y)
        along = AdjointPoint(*(tree.scale(0.0, variable) for variable in point))
        private = (point[1:], along[1:], -1) if self.private_lower else ()
        return FedBiOAccState(*point, along, step=0), private

    def moved_by_server(self, state: FedBiOAccState) -> FedBiOAccState:
        """Return the state with `origin` set to the x of its estimates."""
        return state._replace(origin=state.x)

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round, in which devices compute their first estimates."""
        (phase,) = self.phases(problem)

        def start(
            downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
        ) -> _Work:
            work: _Work = phase.start(downlink, private, data, key)
            samples = draw_samples(data, key, self.initial_batch_size)
            along = directions(problem, work.point, samples)
            return work._replace(along=along, fresh=0 * work.fresh + 1)

        def reference(downlink: Downlink) -> tuple[PyTree, ...]:
            # These are the first estimates, so their reference is 0.
            point = (downlink[0],) if self.private_lower else tuple(downlink[0])
            return *point, *map(tree.zeros_like, point)

        return (
            phase._replace(name="first local steps", start=start, reference=reference),
        )

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: local steps, then an average."""

        def broadcast(server: FedBiOAccState) -> Downlink:
            x, y, z, along, step, origin = server
            if self.private_lower:
                return x, along.x, step, origin
            return AdjointPoint(x, y, z), along, step, origin

        def start(
            downlink: Downlink, private: Private, data: DeviceData, key: RandomKey
        ) -> _Work:
            if not self.private_lower:
                point, along, step, origin = downlink
                return _Work(point, along, step, arrays.number(1, like=point), origin)
            x, upper_direction, step, origin = downlink
            lower, lower_directions, last_step = private
            fresh = arrays.number(last_step == step, like=x)
            along = AdjointPoint(upper_direction, *lower_directions)
            return _Work(AdjointPoint(x, *lower), along, step, fresh, origin)

        def step(work: _Work, data: DeviceData, key: RandomKey) -> _Work:
            point, along, t, fresh, origin = work
            a = schedules.rate_at(self.learning_rate, t)
            rates = AdjointPoint(
                self.upper_rate * a, self.lower_rate * a, self.adjoint_rate * a
            )
            new_point = descend(point, rates, along, self.adjoint_radius)
            samples = draw_samples(data, key, self.batch_size)
            new = directions(problem, new_point, samples)
            # After a step of the server's optimiser, estimates belong to the old x.
            old_point = point if origin is None else point._replace(x=origin)
            old = directions(problem, old_point, samples)
            # A device that joins late, or missed rounds, has no estimates at this x: it
            # discards the old ones.
            forget = AdjointPoint(
                self.upper_mixing * a * a,
                1 - fresh * (1 - self.lower_mixing * a * a),
                1 - fresh * (1 - self.adjoint_mixing * a * a),
            )
            along = AdjointPoint(*map(corrected, along, old, forget, new))
            origin = None if origin is None else new_point.x
            return _Work(new_point, along, t + 1, 0 * fresh + 1, origin)

        def finish(
            work: _Work, downlink: Downlink, key: RandomKey
        ) -> tuple[Upload, Private, Info]:
            point, along, step = work[:3]
            if self.private_lower:
                return Upload((point.x, along.x)), (point[1:], along[1:], step), {}
            return Upload(_Update(*point, *along)), (), {}

        def server(
            server: FedBiOAccState, mean: Upload, key: RandomKey
        ) -> FedBiOAccState:
            step = server.step + self.local_steps
            mean_x, *others = mean.update
            x = tree.keep_fixed(self.upper_rate, server.x, mean_x)
            origin = None if server.origin is None else x
            if self.private_lower:
                along = server.directions._replace(x=others[0])
                return server._replace(x=x, directions=along, step=step, origin=origin)
            y, z, *directions = others
            return FedBiOAccState(x, y, z, AdjointPoint(*directions), step, origin)

        def reference(downlink: Downlink) -> tuple[PyTree, ...]:
            received, along, *_ = downlink
            return (received, along) if self.private_lower else (*received, *along)

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
