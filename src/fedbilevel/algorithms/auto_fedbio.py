"""FedBiO that finds its own rates: from curvature, measured in every exchange."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from fedbilevel.algorithms import queries
from fedbilevel.algorithms.adjoint import (
    AdjointPoint,
    descend,
    directions,
    initial_point,
)
from fedbilevel.algorithms.guard import Guard, judge, new_guard
from fedbilevel.algorithms.protocol import Downlink, Info, Phase, Upload
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import schedules, tree
from fedbilevel.mathematics.hypergradients import Samples
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.power_iteration import curvature_of
from fedbilevel.mathematics.problem import Batch, BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    STATIC,
    Count,
    Fraction,
    LowerRate,
    Range,
    UpperRate,
    check_ranges,
    register,
)

WARM_UP = 0.1
"""The part of a run in which the rate of x grows: z begins at 0, far from H⁻¹ ∇y f."""
FORGETTING = 0.9
"""Of the curvature of earlier rounds, where it was larger than the latest."""
SETTLING = 5
"""Rounds in which the loss may change as it likes, at least: y moves to y*(x)."""
OPENING_BATCHES = 4
"""Batches of each device whose curvature is measured before the first step."""
MOST_BROKEN = 0.1
"""Devices whose local steps diverge, by weight, that are no reason to step back."""
HALF = 0.5
"""Devices whose local steps diverge, by weight, that are always a reason."""


class AutoState(NamedTuple):
    """What the server of `AutoFedBiO` holds.

    Attributes:
        x: the upper variable.
        y: the lower variable.
        adjoint: z, a tree like y.
        step: the number of local steps so far.
        moments: Adam's, of the direction of x.
        lower_velocity: how y moved, with momentum.
        adjoint_velocity: how z moved, with momentum.
        curvature: L, that rates are made from.
        guard: what is known of the loss, and where to step back to.

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

    @property
    def setbacks(self) -> Any:
        """How often the run stepped back to an earlier state."""
        return self.guard.setbacks


class Work(NamedTuple):
    """A device's working state.

    Attributes:
        point: where it is.
        direction: of x, the part of the average so far.
        step: the number of local steps before this one.
        shared: what all devices were told.
        found: what it measured.
        first: the squared length of its first step on y.
        longest: that of its longest.
        sound: whether all examples that it has drawn are finite.
    """

    point: AdjointPoint
    direction: Upper
    step: schedules.Step
    shared: "Shared"
    found: "Found"
    first: Float[Array, ""]
    longest: Float[Array, ""]
    sound: Bool[Array, ""]


class Shared(NamedTuple):
    """What all devices are told besides the point.

    Attributes:
        curvature: L, that rates are made from.
        shrinkage: multiplies all rates.
        level: of the loss, to compare what devices report with.
    """

    curvature: Float[Array, ""]
    shrinkage: Float[Array, ""]
    level: Float[Array, ""]


class Found(NamedTuple):
    """What a device measured.

    Attributes:
        loss: f(x, y) on a batch, where it began.
        curvature: the largest curvature of g on a batch over L, to the fourth power.
        bend: zᵀ H z at the last step; of the mean, the vote on its sign.
    """

    loss: Float[Array, ""]
    curvature: Float[Array, ""]
    bend: Float[Array, ""]


@register
@dataclass(frozen=True)
class AutoFedBiO:
    """FedBiO without settings to guess.

    Between two exchanges, devices move y and z by

        y ← y − γ ∇y g,   z ← z − τ (H z − ∇y f),

    leave x where it is and average its directions ∇x f − J z. The server moves x by
    Adam along the mean of these directions, and y and z to their means with momentum
    (Polyak's heavy ball, dropped where a step turns back), so that they keep up with x
    where the lower loss is hardly curved.

    Rates: γ = lower_rate · c(t) / L and τ = adjoint_rate · c(t) / L, where c decays
    from 1 to `final_rate` by a cosine and L is the curvature of a batch's lower loss,
    measured by each device in each exchange, at a point and along a step: the mean over
    devices of fourth powers, between the mean and the largest, and the largest of late.
    The rate of x grows over the first tenth of `rounds` and then decays to 0 by a
    cosine. The first round measures, and moves nothing.

    What it cannot see: where the lower loss is so badly conditioned that y and z do not
    arrive, x follows wrong directions. Give ten times as many local steps (rounds times
    `local_steps`) as the condition number, or a ridge where that is too many.

    Several local steps let devices that differ drift apart: (x, y) then settles beside
    the solution, by an amount that vanishes with the rates. One local step removes it.

    When the upper loss explodes or local steps diverge, the server goes back to the
    last good state with all rates halved; they grow again by a twentieth a round.
    `Round.server.setbacks` counts how often, and the log says so. It is five times at
    most, unless the local steps of more than half of the devices diverge: a device that
    reports wrong numbers must not stop a run. Where z has come to a direction of
    negative curvature on most devices, the lower loss is not convex and z would grow
    for ever: it begins again at 0.

    Attributes:
        rounds: how long the run is meant to be; later rounds leave x as it is.
        upper_rate: how far Adam usually moves a coordinate of x in a round, where all
            directions agree; x should be in units in which 1 is a lot, such as
            logarithms of penalties.
        lower_rate: γ in units of 1/L.
        adjoint_rate: τ in units of 1/L.
        momentum: of y and z on the server.
        final_rate: the part of the rates of y and z that is left at the end.
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
        Range(at_least=2.0, whole=True, remark="the first measures and moves nothing"),
        STATIC,
    ]
    upper_rate: UpperRate = 0.03
    lower_rate: LowerRate = 1.0
    adjoint_rate: LowerRate = 1.0
    momentum: Annotated[tree.Scalar, Range(at_least=0.0, below=1.0)] = 0.9
    final_rate: Fraction = 0.05
    local_steps: Count = 5
    batch_size: Count = 16

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.rounds * self.local_steps >= 2**31:
            raise ValueError(
                f"AutoFedBiO makes at most {2**31 - 1} local steps, since their "
                f"numbers have 32 bits; rounds={self.rounds} are too many."
            )

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[AutoState, tuple[()]]:
        """Return (x, y, 0) and nothing known; devices keep nothing."""
        point = initial_point(x, y)
        still = tree.scale(0.0, y)
        moments = self._adam(0.0).init(jax.tree.map(_at_least_single, x))
        zero = _number(jnp.zeros(()))
        return AutoState(
            *point,
            step=0,
            moments=moments,
            lower_velocity=still,
            adjoint_velocity=still,
            curvature=zero,
            guard=new_guard((*point, moments), zero),
        ), ()

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return a first round that measures the curvature, and moves nothing."""

        def answer(
            downlink: tuple[Upper, Lower], data: DeviceData, key: RandomKey
        ) -> Float[Array, ""]:
            batches = data.lower.draw(key, self.batch_size, OPENING_BATCHES)
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
            keys = jax.random.split(jax.random.key(0), OPENING_BATCHES)

            def curvature(one: tuple[Batch, RandomKey]) -> Float[Array, ""]:
                batch, probe = one
                hessian = partial(problem.hessian_product, *downlink, batch)
                return curvature_of(hessian, downlink[1], probe)

            # One after another: a loop is compiled once, whatever the number.
            found = jax.lax.map(curvature, (stacked, keys))
            return _number(jnp.mean(found**2))

        measure = queries.ask(
            "curvature",
            lambda server: (server.x, server.y),
            answer,
            lambda server, mean, key: server._replace(
                curvature=_number(jnp.sqrt(mean))
            ),
        )
        measure = measure._replace(
            receive=lambda upload, downlink: upload._replace(
                beside=jnp.maximum(upload.beside, 0.0)
            ),
            gauge=lambda beside, downlink: (jnp.sqrt(beside),),
        )
        return (measure,)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return local steps on y and z, and one average."""

        def broadcast(server: AutoState) -> Downlink:
            guard = server.guard
            shared = Shared(server.curvature, guard.shrinkage, guard.level)
            return AdjointPoint(server.x, server.y, server.adjoint), server.step, shared

        def start(
            downlink: Downlink, private: Any, data: DeviceData, key: RandomKey
        ) -> Work:
            point, t, shared = downlink
            samples = draw_samples(data, key, self.batch_size)
            # Another probe in every exchange, the same on every device.
            probe = jax.random.fold_in(jax.random.key(1), t)
            found = _find(problem, point, samples, shared.curvature, probe)
            still, none = tree.scale(0.0, point.x), jnp.zeros_like(found.loss)
            sound = jnp.asarray(True)
            work = Work(point, still, t, shared, found, none, none, sound)
            begun = self._advance(problem, work, samples)
            along = _along_step(problem, point, begun.point.y, samples)
            curvature = jnp.maximum(
                found.curvature, (along / _unit(shared.curvature)) ** 4
            )
            found = begun.found._replace(curvature=curvature)
            return begun._replace(found=found, first=begun.longest)

        def step(work: Work, data: DeviceData, key: RandomKey) -> Work:
            samples = draw_samples(data, key, self.batch_size)
            return self._advance(problem, work, samples)

        def finish(
            work: Work, downlink: Downlink, key: RandomKey
        ) -> tuple[Upload, tuple[()], Info]:
            received, _, _ = downlink
            reached = work.direction, work.point.y, work.point.adjoint
            stayed = tree.scale(0.0, received.x), received.y, received.adjoint
            # Examples that are not finite, or a loss that is not where it begins: this
            # device is to blame, and the engine leaves it out and names it. Otherwise
            # the steps diverged.
            sound = work.sound & _all_finite((work.found.loss, work.first))
            broken = sound & ~_all_finite((reached, work.found))
            # What cannot be measured where steps diverge leaves L as it was.
            found = work.found._replace(
                curvature=jnp.where(broken, 1.0, work.found.curvature),
                bend=jnp.where(broken, 0.0, work.found.bend),
            )
            reached = jax.tree.map(
                lambda here, there: jnp.where(broken, here, there), stayed, reached
            )
            steps = jnp.where(broken, 0.0, jnp.stack([work.first, work.longest]))
            found = found._replace(loss=jnp.where(sound, found.loss, jnp.nan))
            upload = Upload(reached, (found, steps, _number(broken)))
            return upload, (), {"loss": work.found.loss}

        def receive(upload: Upload, downlink: Downlink) -> Upload:
            # One device's number must not outweigh the others', whatever it is.
            found, steps, broken = upload.beside
            found = found._replace(
                curvature=jnp.maximum(found.curvature, 0.0), bend=jnp.sign(found.bend)
            )
            beside = found, jnp.maximum(steps, 0.0), jnp.clip(broken, 0.0, 1.0)
            return upload._replace(beside=beside)

        def server(server: AutoState, mean: Upload, key: RandomKey) -> AutoState:
            (along, y, z), (found, steps, broken) = mean
            moved = self._move(server, along, y, z, found)
            here = (server.x, server.y, server.adjoint, server.moments)
            guard, exploded = judge(
                server.guard,
                here,
                found.loss,
                warm=(self._done(server.step) > WARM_UP)
                & (server.step >= SETTLING * self.local_steps),
                broken=(broken > HALF) | _ran_away(steps, server.y),
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
            following: AutoState = _either(exploded, back, moved._replace(guard=guard))
            return following

        def reference(downlink: Downlink) -> tuple[PyTree, ...]:
            here, _, _ = downlink
            return tree.zeros_like(here.x), here.y, here.adjoint

        def gauge(beside: PyTree, downlink: Downlink) -> tuple[PyTree, ...]:
            found, steps, _ = beside
            _, _, shared = downlink
            # Where the others' losses are small, an honest one may be large: compared
            # with what losses were before x moved it is not.
            loss = (jnp.abs(found.loss) + shared.level) / _unit(shared.level)
            return found.curvature**0.25, steps, loss

        phase = Phase(
            name="local steps",
            steps=self.local_steps - 1,  # the first is taken by `start`
            broadcast=broadcast,
            start=start,
            step=step,
            finish=finish,
            server=server,
            receive=receive,
            reference=reference,
            gauge=gauge,
        )
        return (phase,)

    def _advance(self, problem: BilevelProblem, work: Work, samples: Samples) -> Work:
        point, direction, t, shared, found = work[:5]
        along = directions(problem, point, samples)
        decay = self.final_rate + (1.0 - self.final_rate) * self._cosine(t)
        # Where nothing is curved, nothing limits a step: none is taken.
        flat = shared.curvature <= 0
        rate = shared.shrinkage * decay / jnp.where(flat, jnp.inf, shared.curvature)
        rates = AdjointPoint(0.0, self.lower_rate * rate, self.adjoint_rate * rate)
        following = descend(point, rates, along, None)._replace(x=point.x)
        part = 1.0 / self.local_steps
        direction = tree.add_scaled(direction, part, along.x)
        moved = _number(tree.squared_norm(tree.subtract(following.y, point.y)))
        return Work(
            following,
            direction,
            t + 1,
            shared,
            found._replace(bend=_bend(problem, point, samples)),
            work.first,
            jnp.maximum(moved, work.longest),
            work.sound & _all_finite(samples),
        )

    def _move(
        self, server: AutoState, along: Upper, y: Lower, z: Lower, found: Found
    ) -> AutoState:
        rate = self._upper_rate(server.step) * server.guard.shrinkage
        before = jax.tree.map(_at_least_single, server.x)
        x, moments = self._adam(rate).step(along, server.moments, before)
        y, lower_velocity = self._carried(server.y, y, server.lower_velocity)
        z, adjoint_velocity = self._carried(server.adjoint, z, server.adjoint_velocity)
        # A z in negative curvature grows for ever, and tells nothing about x.
        lost = found.bend < 0
        none = tree.scale(0.0, z)
        x, moments, z, adjoint_velocity = _either(
            lost,
            (before, server.moments, none, none),
            (x, moments, z, adjoint_velocity),
        )
        risen = jnp.maximum(
            found.curvature, FORGETTING + (1.0 - FORGETTING) * found.curvature
        )
        return server._replace(
            x=x,
            y=y,
            adjoint=z,
            step=server.step + self.local_steps,
            moments=moments,
            lower_velocity=lower_velocity,
            adjoint_velocity=adjoint_velocity,
            curvature=_unit(server.curvature) * _number(risen) ** 0.25,
        )

    def _carried(self, old: Lower, mean: Lower, velocity: Lower) -> tuple[Lower, Lower]:
        old = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), old, mean)
        velocity = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), velocity, mean)
        step = tree.subtract(mean, old)
        # A step against the velocity: it went too far, or there is only noise.
        onward = tree.inner(step, velocity) > 0
        momentum = jnp.where(onward, self.momentum, 0.0)
        velocity = tree.add_scaled(step, momentum, velocity)
        return tree.add_scaled(old, 1.0, velocity), velocity

    def _upper_rate(self, t: schedules.Step) -> tree.Scalar:
        done = self._done(t + self.local_steps)  # after the round that begins at t
        warm = jnp.minimum(done / WARM_UP, 1.0)
        later = jnp.clip((done - WARM_UP) / (1.0 - WARM_UP), 0.0, 1.0)
        return self.upper_rate * warm * 0.5 * (1.0 + jnp.cos(jnp.pi * later))

    def _cosine(self, t: schedules.Step) -> Float[Array, ""]:
        return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(self._done(t), 1.0)))

    def _done(self, t: schedules.Step) -> Float[Array, ""]:
        return _number(t) / (self.local_steps * self.rounds)

    def _adam(self, rate: tree.Scalar) -> OptaxOptimiser:
        # Hypergradients may be tiny, and must still count: eps is nearly nothing.
        numbers = {"learning_rate": rate, "b1": 0.9, "b2": 0.99, "eps": 1e-15}
        return OptaxOptimiser("adam", numbers, ())


def _find(
    problem: BilevelProblem,
    point: AdjointPoint,
    samples: Samples,
    level: Float[Array, ""],
    key: RandomKey,
) -> Found:
    (batch,) = samples.curvature
    hessian = partial(problem.hessian_product, point.x, point.y, batch)
    return Found(
        loss=_number(problem.upper_loss(point.x, point.y, samples.upper)),
        # Fourth powers of any unit would leave the range of single precision.
        curvature=(_number(curvature_of(hessian, point.y, key)) / _unit(level)) ** 4,
        bend=_number(jnp.zeros(())),  # the steps will tell
    )


def _bend(
    problem: BilevelProblem, point: AdjointPoint, samples: Samples
) -> Float[Array, ""]:
    """Return zᵀ H z, with the product that the step on z has computed already."""
    (batch,) = samples.curvature
    x, y, z = point
    return _number(tree.inner(z, problem.hessian_product(x, y, batch, z)))


def _along_step(
    problem: BilevelProblem, point: AdjointPoint, y: Lower, samples: Samples
) -> Float[Array, ""]:
    """Return the curvature between two points: far from y*, it may be 0 at both."""
    x, before, _ = point
    turned = tree.subtract(
        problem.lower_gradient(x, y, samples.lower),
        problem.lower_gradient(x, before, samples.lower),
    )
    moved = _number(tree.squared_norm(tree.subtract(y, before)))
    turned = _number(tree.squared_norm(turned))
    return jnp.sqrt(jnp.where(moved > 0, turned / jnp.where(moved > 0, moved, 1.0), 0))


def _ran_away(steps: Float[Array, "2"], y: Lower) -> Bool[Array, ""]:
    """Return whether a step on y was ten times y, and a hundred times the first."""
    first, longest = steps
    far = longest > 100.0 * _number(tree.squared_norm(y))
    # After a step of length 0, such as at y*(x), any other is infinitely longer.
    ran_away: Bool[Array, ""] = far & (first > 0) & (longest > 1e4 * first)
    return ran_away


def _unit(level: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(level > 0, level, 1.0)


def _either(condition: Bool[Array, ""], one: Any, other: Any) -> Any:
    return jax.tree.map(
        lambda a, b: jnp.where(condition, jnp.asarray(a, jnp.result_type(b)), b),
        one,
        other,
    )


def _all_finite(values: PyTree) -> Bool[Array, ""]:
    floating = [
        leaf
        for leaf in map(jnp.asarray, jax.tree.leaves(values))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    finite = [jnp.isfinite(leaf).all() for leaf in floating]
    return jnp.stack([jnp.asarray(True), *finite]).all()


def _number(value: Array | int) -> Float[Array, ""]:
    """Return a number at the usual precision, whatever that of the variables is."""
    return jnp.asarray(value, float)


def _at_least_single(leaf: Array) -> Any:
    number: Any = jnp.result_type(leaf)
    return jnp.asarray(leaf, number if number.itemsize >= 4 else jnp.float32)
