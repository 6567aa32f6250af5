"""An algorithm whose messages are clipped, noised, encoded or averaged robustly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedbilevel.algorithms.optional import Conflict, conflict_of
from fedbilevel.algorithms.protocol import (
    Aggregation,
    Beside,
    Carry,
    Downlink,
    FederatedAlgorithm,
    Info,
    Phase,
    Upload,
)
from fedbilevel.algorithms.wrapper import find_layer, map_phases
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Role,
    register,
)
from fedbilevel.transforms.changes import check_changes
from fedbilevel.transforms.download import FIRST_SEED
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.fixed_point import FixedPoint
from fedbilevel.transforms.noise import DeviceNoise, GaussianNoise
from fedbilevel.transforms.plan import Plan, names_of, plan_of
from fedbilevel.transforms.private_phases import PhasesOf, private_phases
from fedbilevel.transforms.protocol import AnyTransform
from fedbilevel.transforms.rules import Names
from fedbilevel.transforms.stages import Exchange, Sent, Work
from fedbilevel.transforms.states import PrivateState, TransformedState


@register
@dataclass(frozen=True)
class Transformed:
    """An algorithm whose devices transform their updates.

    `Download` applies to the messages to the devices, all other transforms to the
    difference between an update and that of an idle device (`Phase.reference`). Values
    beside the update (`Upload.beside`) are changed only under noise, where they are
    bounded and get noise as well, and under `FixedPoint`, where they are bounded and
    rounded as well.

    Attributes:
        algorithm: the inner algorithm.
        transforms: transforms, in the order in which they apply.
    """

    algorithm: Annotated[Any, Role.SAME_STEPS]
    transforms: tuple[Any, ...]

    def __post_init__(self) -> None:
        if transforms_of(self.algorithm):
            raise ValueError(
                "with_transforms: the algorithm already has transforms. Pass all "
                "transforms in one call."
            )
        plan = plan_of(self.transforms)
        conflict = conflict_of(self.algorithm, Conflict.EXAMPLE_NOISE)
        if plan.example_noise is not None and conflict is not None:
            raise ValueError(f"with_transforms: {conflict}")

    @property
    def conflicts(self) -> Mapping[Conflict, str]:
        """An optimiser around transforms would not see the state of x."""
        return {
            Conflict.SERVER_OPTIMISER: "the algorithm has transforms of uploads. Add "
            "the optimiser first: with_transforms(with_server_optimiser(...), ...)."
        }

    @property
    def plan(self) -> Plan:
        """The transforms by the place where they act."""
        return plan_of(self.transforms)

    def init(self, problem: BilevelProblem, x: Upper, y: Lower) -> tuple[Any, Any]:
        """Return the initial states of the inner algorithm and of the transforms."""
        server, private = self.algorithm.init(problem, x, y)
        plan, inner = self.plan, jax.tree.map(jnp.asarray, server)
        forms = {
            phase.name: plan.form_of_changes(
                jax.eval_shape(
                    lambda state, phase=phase: phase.reference(phase.broadcast(state)),
                    inner,
                )
            )
            for phase in (
                *self.algorithm.opening(problem),
                *self.algorithm.phases(problem),
            )
            if phase.reference is not None
        }
        if plan.has_memory:
            private = PrivateState(
                private,
                {name: plan.code.first_memory(form) for name, form in forms.items()},
            )
        if plan.download is not None:
            server = TransformedState(server, seed=jnp.array(FIRST_SEED, jnp.uint32))
        if plan.is_adaptive:
            bounds = {
                name: plan.clip.first_bounds(len(form)) for name, form in forms.items()
            }
            server = TransformedState(server, bounds)
        return server, private

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round of the inner algorithm, with transformed updates."""
        return self._transform(self.algorithm.opening, problem)

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the inner algorithm, with transformed updates."""
        return self._transform(self.algorithm.phases, problem)

    def _transform(
        self, phases_of: PhasesOf, problem: BilevelProblem
    ) -> tuple[Phase, ...]:
        plan = self.plan
        if plan.example_noise is None:
            phases = phases_of(problem)
        else:
            phases = private_phases(phases_of, problem, plan.example_noise)
        if plan.download is not None:
            phases = map_phases(plan.download.around, phases)
        if not plan.changes_uploads:
            return phases
        return map_phases(lambda phase: _Staged(phase, plan).phase, phases)


class _Staged:
    """A phase whose uploads go through the stages of a plan."""

    def __init__(self, inner: Phase, plan: Plan) -> None:
        self._inner, self._plan = inner, plan
        self._stages = plan.stages_of(inner)

    @property
    def phase(self) -> Phase:
        inner, plan = self._inner, self._plan
        sends_update = inner.reference is not None
        # A mean of bounded changes has no reference: no device is excluded by it.
        is_compared = plan.bounding is None
        gauge = self._gauge if is_compared and inner.beside.gauge is not None else None
        return inner._replace(
            broadcast=self._broadcast if plan.is_adaptive else inner.broadcast,
            start=self._start,
            step=lambda carry, *others: (inner.step(carry[0], *others), *carry[1:]),
            finish=self._finish,
            server=self._server,
            reference=self._reference if is_compared and sends_update else None,
            beside=Beside(gauge=gauge),
            aggregation=Aggregation(
                self._receive,
                self._mean if sends_update and plan.mean is not None else None,
                plan.fixed_point is not None,
                self._release if plan.noise is not None else None,
            ),
        )

    def _reference(self, downlink: Downlink) -> tuple[PyTree, ...]:
        return self._exchange(downlink).form

    def _gauge(self, sent: Sent, downlink: Downlink) -> Any:
        gauge: Any = self._inner.beside.gauge
        return gauge(sent.values, self._split(downlink)[0])

    def _broadcast(self, server: TransformedState) -> Downlink:
        bounds: Any = server.bounds
        return self._inner.broadcast(server.inner), bounds.get(self._inner.name, ())

    def _split(self, downlink: Downlink) -> tuple[Downlink, Any]:
        """Return the downlink of the inner phase, and the bounds that follow it."""
        return downlink if self._plan.is_adaptive else (downlink, None)

    def _exchange(self, downlink: Downlink) -> Exchange:
        received, bounds = self._split(downlink)
        inner, plan = self._inner, self._plan
        idle = () if inner.reference is None else inner.reference(received)
        if plan.clip is None or not idle:
            bounds = None
        elif plan.is_adaptive:
            # A dishonest server may send a bound whose noise is rounded to zero.
            bounds = jnp.clip(bounds, SMALLEST_SCALE, LARGEST_SCALE)
        else:
            bounds = plan.clip.first_bounds(len(idle))
        form = plan.form_of_changes(idle)
        has_units = inner.beside.units is not None
        return Exchange(inner.name, received, idle, form, plan.clip, bounds, has_units)

    def _start(
        self, downlink: Downlink, private: Any, data: DeviceData, key: RandomKey
    ) -> Carry:
        received, _ = self._split(downlink)
        memories: Mapping[str, Any] = {}
        if self._plan.has_memory:
            private, memories = private
        carry = self._inner.start(received, private, data, key)
        # Only a mask needs the state before the work.
        before = () if self._plan.noise is None else private
        return carry, before, memories

    def _finish(
        self, carry: Carry, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Any, Info]:
        exchange = self._exchange(downlink)
        inner_key, key = jax.random.split(key)
        inner, before, memories = carry
        upload, private, info = self._inner.finish(inner, exchange.downlink, inner_key)
        check_changes(self._inner, upload, self._plan.bounding)
        sent = upload._replace(beside=Sent(upload.beside))
        work = Work(sent, private, before, memories)
        for stage in self._stages:
            work = stage.send(work, exchange, key)
        state: Any = work.private
        if self._plan.has_memory:
            state = PrivateState(work.private, work.memories)
        # Means of reported values have no noise, and no bounds.
        return work.upload, state, info if self._plan.bounding is None else {}

    def _receive(self, upload: Upload, downlink: Downlink) -> Upload:
        exchange = self._exchange(downlink)
        for stage in reversed(self._stages):
            upload = stage.receive(upload, exchange)
        return upload

    def _mean(
        self, changes: Any, weights: Float[Array, "devices"], downlink: Downlink
    ) -> Any:
        assert self._plan.mean is not None, "the phase has a robust mean"
        return self._plan.mean(changes, weights, self._reference(downlink))

    def _release(self, server: Any, mean: Upload, *drawn: Any) -> Upload:
        exchange = self._exchange(self.phase.broadcast(server))
        if drawn:
            shares, normals = drawn
            exchange = exchange._replace(shares=shares, normals=normals)
        for stage in reversed(self._stages):
            mean = stage.release(mean, exchange)
        return mean

    def _server(self, server: Any, mean: Upload, key: RandomKey) -> Any:
        plan, name = self._plan, self._inner.name
        if plan.noise is None:
            mean = self._release(server, mean)
        values, votes, _ = mean.beside
        inner = server.inner if plan.is_adaptive else server
        following = self._inner.server(inner, mean._replace(beside=values), key)
        if not plan.is_adaptive:
            return following
        bounds = dict(server.bounds)
        if name in bounds and jax.tree.leaves(votes):
            below = jnp.asarray(votes + 0.5, bounds[name].dtype)
            bounds[name] = plan.clip.next_bounds(bounds[name], below)
        return TransformedState(following, bounds)


def fixed_point_of(algorithm: Any) -> FixedPoint | None:
    """Return the fixed-point numbers of an algorithm, or of the one that it wraps.

    Example:
        >>> from fedbilevel import Clip, FedBiO, FixedPoint
        >>> fixed_point_of(with_transforms(FedBiO(0.1), Clip(1.0), FixedPoint(12)))
        FixedPoint(bits=12)
        >>> fixed_point_of(FedBiO(0.1)) is None
        True
    """
    return _plan_of_algorithm(algorithm).fixed_point


def noise_of(algorithm: Any) -> GaussianNoise | DeviceNoise | ExampleNoise | None:
    """Return the noise of an algorithm, or of the algorithm that it wraps.

    Example:
        >>> from fedbilevel import Clip, FedBiO, GaussianNoise
        >>> noise_of(with_transforms(FedBiO(0.1), Clip(1.0), GaussianNoise(2.0)))
        GaussianNoise(multiplier=2.0, delta=1e-05, epsilon=None, from_seed=False)
        >>> noise_of(FedBiO(0.1)) is None
        True
    """
    plan = _plan_of_algorithm(algorithm)
    return plan.example_noise or plan.noise


def transforms_of(algorithm: Any) -> Names:
    """Return the places and names of an algorithm's transforms, for rules.

    Example:
        >>> from fedbilevel import Clip, FedBiO
        >>> transforms_of(with_transforms(FedBiO(0.1), Clip(1.0)))
        [('clip', 'Clip')]
    """
    transformed = find_layer(algorithm, Transformed)
    return [] if transformed is None else names_of(transformed.transforms)


def _plan_of_algorithm(algorithm: Any) -> Plan:
    transformed = find_layer(algorithm, Transformed)
    return Plan() if transformed is None else transformed.plan


def with_transforms(
    algorithm: FederatedAlgorithm, *transforms: AnyTransform
) -> Transformed:
    """Return an algorithm whose messages are transformed.

    Args:
        algorithm: any algorithm.
        transforms: in this order, any of: `Download`; `ExampleNoise`; a clip (`Clip`,
            `ClipEach`, `AdaptiveClip`); `DeviceNoise`; a transform with a `Stage`;
            codes (`TopK`, `RandomK`, `Quantise`, `Feedback`) or `FixedPoint`; a robust
            mean (`TrimmedMean`, `GeometricMedian`, `CentredClipping`) or
            `GaussianNoise`.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, Clip, FedBiO, InMemoryDevices, LocalExamples, run
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> algorithm = with_transforms(FedBiO(0.1), Clip(0.01))
        >>> problem = BilevelProblem(loss, loss)
        >>> (last,) = run(problem, algorithm, devices, 3.0, 0.0, rounds=1)
        >>> update = np.array([last.x - 3.0, last.y, last.server.adjoint])
        >>> round(float(np.linalg.norm(update)), 4)
        0.01
    """
    return Transformed(algorithm, transforms)
