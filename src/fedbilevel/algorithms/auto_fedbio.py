"""FedBiO with automatic rates, from the curvature measured in every exchange."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
from jaxtyping import Bool, Float, PyTree

from fedbilevel.algorithms.adjoint import (
    AdjointPoint,
    descend,
    directions,
    initial_point,
)
from fedbilevel.algorithms.auto_measurements import (
    DRIFTING,
    HALF,
    Measurements,
    Report,
    Shared,
    bend,
    curvature_along,
    curvature_query,
    limits_of,
    mean_power,
    measure,
    number,
    ran_away,
    unit,
)
from fedbilevel.algorithms.guard import Guard, judge, new_guard
from fedbilevel.algorithms.optional import Conflict
from fedbilevel.algorithms.protocol import Downlink, Info, Phase, Upload
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.settling import Settling, new_settling, observe
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import arrays, keys, schedules, tree
from fedbilevel.mathematics.arrays import Array
from fedbilevel.mathematics.batches import all_finite
from fedbilevel.mathematics.hypergradients import Samples
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    STATIC,
    BatchSize,
    Fraction,
    LocalSteps,
    Range,
    Rate,
    Role,
    UpperRate,
    check_ranges,
    register,
)

WARM_UP = 0.1
"""Fraction of a run in which the rate of x grows: z starts at 0, far from H⁻¹ ∇y f."""
FORGETTING = 0.9
"""Weight of the earlier curvature in its average, if it was larger than the latest."""
MARGIN = 1.25
"""Factor of L in the rates with one local step."""
SETTLING = 5
"""Least number of rounds without a check of the loss, while y moves to y*(x)."""
MOST_BROKEN = 0.1
"""Weight of devices with diverging local steps up to which a run never steps back."""

SETBACK = (
    "the upper loss or the local steps diverged. The run continues from its last good "
    "state with all learning rates halved."
)
UNSETTLED = (
    "the lower problem has not been solved in directions in which the curvature of the "
    "lower loss is small: y or z still moved steadily there in the last fifth of the "
    "rounds, so x may be wrong. Standardise the features to mean 0 and variance 1, add "
    "a larger penalty on y to the lower loss, or raise rounds or local_steps."
)


class AutoState(NamedTuple):
    """The server state of `AutoFedBiO`.

    Attributes:
        x: upper variable.
        y: lower variable.
        adjoint: z, a tree like y.
        step: number of local steps so far.
        moments: Adam's moments of the direction of x.
        lower_velocity: last step of y, with momentum.
        adjoint_velocity: last step of z, with momentum.
        curvature: L, from which rates are computed.
        guard: statistics of the loss, and the last good state.
        settling: statistics of the moves of y and z.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem
        >>> loss = lambda x, y, batch: y**2
        >>> problem = BilevelProblem(loss, loss)
        >>> state, _ = AutoFedBiO(rounds=9).init(problem, jnp.ones(()), jnp.ones(()))
        >>> int(state.setbacks)
        0
    """

    x: Upper
    y: Lower
    adjoint: Lower
    step: schedules.Step
    moments: PyTree
    lower_velocity: Lower
    adjoint_velocity: Lower
    curvature: Float[Array, ""]
    guard: Guard
    settling: Settling

    @property
    def notices(self) -> Mapping[str, Any]:
        """Number of setbacks, and of verdicts that the lower problem is not solved."""
        return {SETBACK: self.guard.setbacks, UNSETTLED: self.settling.unsettled}

    @property
    def setbacks(self) -> Any:
        """Number of times the run stepped back to an earlier state."""
        return self.guard.setbacks


class Work(NamedTuple):
    """A device's working state.

    Attributes:
        point: current point.
        direction: sum so far of the averaged direction of x.
        step: number of local steps before this one.
        shared: values sent to all devices.
        measured: measurements of this device.
        first: squared length of its first step on y.
        longest: squared length of its longest step on y.
        sound: True if all drawn examples are finite.
    """

    point: AdjointPoint
    direction: Upper
    step: schedules.Step
    shared: Shared
    measured: Measurements
    first: Float[Array, ""]
    longest: Float[Array, ""]
    sound: Bool[Array, ""]


@register
@dataclass(frozen=True)
class AutoFedBiO:
    """FedBiO with automatic rates: no settings to tune.

    Between two exchanges, devices move y and z by

        y ← y − γ ∇y g,   z ← z − τ (H z − ∇y f),

    keep x fixed and average its directions ∇x f − J z. The server moves x by Adam along
    the mean of these directions. It moves y and z to their means with momentum
    (Polyak's heavy ball, reset when a step reverses), so that they follow x even if the
    curvature of the lower loss is small.

    Rates: γ = lower_rate · c(t) / L and τ = adjoint_rate · c(t) / L, where c decays
    from 1 to `final_rate` by a cosine and L is the curvature of a batch's lower loss
    (1.25 times it with one local step).
    Each device measures it in each exchange, at a point and along a step. L is the mean
    over devices with one local step; with several, the fourth root of the mean of
    fourth powers, which is between the mean and the maximum. It rises at once and
    decays slowly. The rate of x grows over the first
    tenth of `rounds` and then decays to 0 by a cosine. The first round measures the
    curvature and moves nothing.

    Limitation: if the lower loss is so badly conditioned that y and z do not converge,
    x follows wrong directions; the log reports it at the end of a run of at least 81
    rounds (`settling`). Standardise features, and use ten times as many local steps
    (rounds times `local_steps`) as the condition number, or add a ridge if that is too
    many.

    With several local steps, heterogeneous devices drift apart: (x, y) then converges
    to a point near the solution, at a distance that vanishes with the rates. One local
    step removes the drift.

    If the upper loss explodes or local steps diverge, the server returns to the last
    good state with all rates halved; they then grow by 5 % a round.
    `Round.server.setbacks` counts these setbacks, and the log reports them. A run has
    at most five setbacks, unless the local steps of more than half of the devices
    diverge: a device that reports wrong numbers must not stop a run. If z reaches a
    direction of negative curvature on most devices, the lower loss is not convex and z
    would grow without limit: z is reset to 0.

    Attributes:
        rounds: planned number of rounds; later rounds keep x fixed.
        upper_rate: usual step of Adam on a coordinate of x in a round, if all
            directions agree; choose units of x in which 1 is a large change, such as
            logarithms of penalties.
        lower_rate: γ in units of 1/L.
        adjoint_rate: τ in units of 1/L.
        momentum: momentum of y and z on the server.
        final_rate: fraction of the rates of y and z that remains at the end.
        local_steps: steps between two exchanges.
        batch_size: examples in each of the four batches of a step.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import AutoFedBiO, BilevelProblem, InMemoryDevices
        >>> from fedbilevel import LocalExamples, run
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: 1e4 * jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> algorithm = AutoFedBiO(rounds=200)
        >>> *_, last = run(problem, algorithm, devices, 2.0, 0.0, rounds=200)
        >>> bool(abs(last.x - 1.0) < 0.01)  # Φ(x) = (x − 1)²
        True
    """

    rounds: Annotated[
        int,
        Range(at_least=2.0, whole=True, remark="the first round only measures"),
        STATIC,
    ]
    upper_rate: Annotated[UpperRate, Role.OPTIMISER] = 0.03
    lower_rate: Rate = 1.0
    adjoint_rate: Rate = 1.0
    momentum: Annotated[tree.Scalar, Range(at_least=0.0, below=1.0)] = 0.9
    final_rate: Fraction = 0.05
    local_steps: LocalSteps = 5
    batch_size: BatchSize = 16

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.rounds * self.local_steps >= 2**31:
            raise ValueError(
                f"AutoFedBiO: rounds · local_steps is {self.rounds * self.local_steps},"
                f" expected at most {2**31 - 1}, since steps are counted in 32 bits. "
                "Lower rounds or local_steps."
            )

    @property
    def planned_rounds(self) -> int:
        """The number of rounds over which learning rates decay."""
        return self.rounds

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """Noise on examples does not protect it, and it has its own optimiser of x."""
        return {
            Conflict.EXAMPLE_NOISE: "ExampleNoise does not protect AutoFedBiO, which "
            "reads the upper loss of its examples, and whose measured curvature would "
            "be that of the noise. Select another algorithm, such as FedBiO.",
            Conflict.SERVER_OPTIMISER: "AutoFedBiO already has a server optimiser. "
            "Select another algorithm, such as FedBiO.",
        }

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[AutoState, tuple[()]]:
        """Return (x, y, 0) without measurements; devices have no private state."""
        point = initial_point(x, y)
        still = tree.scale(0.0, y)
        moments = self._adam(0.0).init(tree.at_least_single(x))
        zero = arrays.number(0.0, like=x)
        return AutoState(
            *point,
            step=0,
            moments=moments,
            lower_velocity=still,
            adjoint_velocity=still,
            curvature=zero,
            guard=new_guard((*point, moments), zero),
            settling=new_settling(point.y, point.adjoint),
        ), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return a first round that measures the curvature and moves nothing."""
        return (curvature_query(problem, self.batch_size),)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the exchange: local steps on y and z, then an average."""
        power = mean_power(self.local_steps)

        def start(
            downlink: Downlink, private: Any, data: DeviceData, key: RandomKey
        ) -> Work:
            point, t, shared = downlink
            samples = draw_samples(data, key, self.batch_size)
            # Every exchange has another probe, the same on every device.
            probe = keys.fold_in(keys.key_of(1, like=key), t)
            measured = measure(problem, point, samples, shared.curvature, probe, power)
            zero_x, zero = tree.scale(0.0, point.x), arrays.number(0.0, measured.loss)
            sound = arrays.constant(True, like=point)
            work = Work(point, zero_x, t, shared, measured, zero, zero, sound)
            first = self._advance(problem, work, samples)
            along = curvature_along(problem, point, first.point.y, samples)
            curvature = arrays.maximum(
                measured.curvature, (along / unit(shared.curvature)) ** power
            )
            measured = first.measured._replace(curvature=curvature)
            return first._replace(measured=measured, first=first.longest)

        def step(work: Work, data: DeviceData, key: RandomKey) -> Work:
            samples = draw_samples(data, key, self.batch_size)
            return self._advance(problem, work, samples)

        phase = Phase(
            name="local steps",
            steps=self.local_steps - 1,  # `start` makes the first step
            broadcast=_broadcast,
            start=start,
            step=step,
            finish=_finish,
            server=self._conclude,
            reference=_reference,
            beside=limits_of(power),
        )
        return (phase,)

    def _advance(self, problem: BilevelProblem, work: Work, samples: Samples) -> Work:
        point, direction, t, shared, measured = work[:5]
        along = directions(problem, point, samples)
        rate = self._rate(t, shared.curvature, shared.shrinkage)
        rates = AdjointPoint(0.0, self.lower_rate * rate, self.adjoint_rate * rate)
        next_point = descend(point, rates, along, None)._replace(x=point.x)
        direction = tree.add_scaled(direction, 1.0 / self.local_steps, along.x)
        length = number(tree.squared_norm(tree.subtract(next_point.y, point.y)))
        return Work(
            next_point,
            direction,
            t + 1,
            shared,
            measured._replace(bend=bend(problem, point, samples)),
            work.first,
            arrays.maximum(length, work.longest),
            work.sound & all_finite(samples),
        )

    def _conclude(self, server: AutoState, mean: Upload, key: RandomKey) -> AutoState:
        """Return the state after a round: moved, or the last good one."""
        (along, y, z), (measured, steps, broken) = mean
        moved = self._move(server, along, y, z, measured)
        before = (server.x, server.y, server.adjoint, server.moments)
        guard, exploded = judge(
            server.guard,
            before,
            measured.loss,
            warm=(self._progress(server.step) > WARM_UP)
            & (server.step >= SETTLING * self.local_steps),
            broken=(broken > HALF) | ran_away(steps, server.y),
            doubtful=broken > MOST_BROKEN,
        )
        x, y, z, moments = guard.good
        back = moved._replace(
            x=x,
            y=y,
            adjoint=z,
            moments=moments,
            lower_velocity=tree.scale(0.0, moved.lower_velocity),
            adjoint_velocity=tree.scale(0.0, moved.adjoint_velocity),
            guard=guard,
        )
        state: AutoState = arrays.select(exploded, back, moved._replace(guard=guard))
        return state._replace(settling=self._observe(server, state))

    def _move(
        self,
        server: AutoState,
        along: Upper,
        y: Lower,
        z: Lower,
        measured: Measurements,
    ) -> AutoState:
        rate = self._upper_rate(server.step) * server.guard.shrinkage
        before = tree.at_least_single(server.x)
        x, moments = self._adam(rate).step(along, server.moments, before)
        y, lower_velocity = self._accelerate(server.y, y, server.lower_velocity)
        z, adjoint_velocity = self._accelerate(
            server.adjoint, z, server.adjoint_velocity
        )
        # A z in a direction of negative curvature grows without limit, and its
        # direction of x is meaningless: z restarts at 0 and x does not move.
        zero = tree.scale(0.0, z)
        x, moments, z, adjoint_velocity = arrays.select(
            measured.bend < 0,
            (before, server.moments, zero, zero),
            (x, moments, z, adjoint_velocity),
        )
        power = mean_power(self.local_steps)
        # Over time it is a mean of fourth powers with any number of local steps: a rare
        # batch of a large curvature must not meet rates for the others.
        change = number(measured.curvature) ** (DRIFTING / power)
        ratio = arrays.maximum(change, FORGETTING + (1.0 - FORGETTING) * change)
        return server._replace(
            x=x,
            y=y,
            adjoint=z,
            step=server.step + self.local_steps,
            moments=moments,
            lower_velocity=lower_velocity,
            adjoint_velocity=adjoint_velocity,
            curvature=unit(server.curvature) * ratio ** (1 / DRIFTING),
        )

    def _observe(self, before: AutoState, after: AutoState) -> Settling:
        rate = self.local_steps * self._rate(
            before.step, before.curvature, before.guard.shrinkage
        )
        return observe(
            before.settling,
            after.y,
            after.adjoint,
            rate=rate,
            done=after.step // self.local_steps,
            rounds=self.rounds - 1,  # the first round moves nothing
        )

    def _accelerate(
        self, old: Lower, mean: Lower, velocity: Lower
    ) -> tuple[Lower, Lower]:
        old, velocity = (jax.tree.map(arrays.cast, a, mean) for a in (old, velocity))
        step = tree.subtract(mean, old)
        # A step against the velocity means an overshoot or noise: momentum is reset.
        forward = tree.inner(step, velocity) > 0
        momentum = arrays.where(forward, self.momentum, 0.0)
        velocity = tree.add_scaled(step, momentum, velocity)
        return tree.add_scaled(old, 1.0, velocity), velocity

    def _rate(
        self,
        t: schedules.Step,
        curvature: Float[Array, ""],
        shrinkage: Float[Array, ""],
    ) -> Float[Array, ""]:
        """Return the rate of steps on y and z, for a factor of 1."""
        decay = self.final_rate + (1.0 - self.final_rate) * self._cosine(t)
        # Without curvature a step has no limit, so no step is made.
        flat = curvature <= 0
        # L may be exact with one local step. A step of 1/L ends at the minimum along
        # the steepest direction, and momentum then oscillates: after 300 rounds on
        # three devices x was 7e-3 from the solution, and 1e-5 with this margin.
        margin = MARGIN if self.local_steps == 1 else 1.0
        return shrinkage * decay / arrays.where(flat, math.inf, margin * curvature)

    def _upper_rate(self, t: schedules.Step) -> tree.Scalar:
        progress = self._progress(t + self.local_steps)  # after the current round
        warm = arrays.minimum(progress / WARM_UP, 1.0)
        later = arrays.clip((progress - WARM_UP) / (1.0 - WARM_UP), 0.0, 1.0)
        return self.upper_rate * warm * 0.5 * (1.0 + arrays.cos(math.pi * later))

    def _cosine(self, t: schedules.Step) -> Float[Array, ""]:
        return 0.5 * (
            1.0 + arrays.cos(math.pi * arrays.minimum(self._progress(t), 1.0))
        )

    def _progress(self, t: schedules.Step) -> Float[Array, ""]:
        return number(t) / (self.local_steps * self.rounds)

    def _adam(self, rate: tree.Scalar) -> OptaxOptimiser:
        # Hypergradients may be tiny; a larger eps would suppress their steps.
        numbers = {"learning_rate": rate, "b1": 0.9, "b2": 0.99, "eps": 1e-15}
        return OptaxOptimiser("adam", numbers, ())


def _broadcast(server: AutoState) -> Downlink:
    guard = server.guard
    shared = Shared(server.curvature, guard.shrinkage, guard.level)
    return AdjointPoint(server.x, server.y, server.adjoint), server.step, shared


def _reference(downlink: Downlink) -> tuple[PyTree, ...]:
    point, _, _ = downlink
    return tree.zeros_like(point.x), point.y, point.adjoint


def _finish(
    work: Work, downlink: Downlink, key: RandomKey
) -> tuple[Upload, tuple[()], Info]:
    received, _, _ = downlink
    end = work.direction, work.point.y, work.point.adjoint
    begin = tree.scale(0.0, received.x), received.y, received.adjoint
    # If examples, or the loss at the received point, are not finite, the cause is this
    # device: the engine excludes it and names it, or noise masks it. Otherwise the
    # steps diverged.
    sound = work.sound & arrays.all_finite((work.measured.loss, work.first))
    broken = sound & ~arrays.all_finite((end, work.measured))
    # Diverging steps give no measurement; the neutral values keep L.
    measured = Measurements(
        loss=arrays.where(sound, work.measured.loss, math.nan),
        curvature=arrays.where(broken, 1.0, work.measured.curvature),
        bend=arrays.where(broken, 0.0, work.measured.bend),
    )
    end = jax.tree.map(lambda a, b: arrays.where(broken, a, b), begin, end)
    steps = arrays.where(broken, 0.0, arrays.stack([work.first, work.longest]))
    upload = Upload(end, Report(measured, steps, number(broken)))
    return upload, (), {"loss": work.measured.loss}
