"""An algorithm whose messages are clipped, noised, encoded or averaged robustly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.optional import Conflict, conflict_of
from fedbilevel.algorithms.protocol import (
    Aggregation,
    Beside,
    Carry,
    Downlink,
    FederatedAlgorithm,
    Info,
    Phase,
    Private,
    Server,
    Shares,
    Upload,
)
from fedbilevel.algorithms.wrapper import find_layer, map_phases
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Role,
    register,
)
from fedbilevel.transforms.clip import clip_parts, clip_to, map_parts, norms_of
from fedbilevel.transforms.download import FIRST_SEED, Seed
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.fixed_point import (
    DEVIATIONS,
    Counted,
    FixedPoint,
    mark_unless_finite,
)
from fedbilevel.transforms.masking import Contribution, mask_unless_finite
from fedbilevel.transforms.noise import (
    BESIDE,
    VOTES,
    DeviceNoise,
    GaussianNoise,
    add_normals,
    normal_numbers,
)
from fedbilevel.transforms.plan import Plan, names_of, plan_of
from fedbilevel.transforms.private_phases import PhasesOf, private_phases
from fedbilevel.transforms.protocol import AnyTransform, Bounds
from fedbilevel.transforms.random_words import random_seeds
from fedbilevel.transforms.rules import Names

NEXT_SEED = 0x5EED
"""A number folded into the server's key for the seed of the next download."""


class TransformedState(NamedTuple):
    """The state of the inner algorithm and that of the transforms.

    Attributes:
        inner: state of the inner algorithm.
        bounds: bounds of an adaptive clip in each phase, by its name.
        seed: seed of the next download's code; () if downloads are not coded.
    """

    inner: Server
    bounds: Mapping[str, Bounds]
    seed: Seed | tuple[()] = ()

    @property
    def x(self) -> Upper:
        """The upper variable."""
        return self.inner.x

    @property
    def y(self) -> Lower:
        """The lower variable."""
        return self.inner.y

    @property
    def step(self) -> Any:
        """The number of local steps so far, if the inner algorithm counts them."""
        return self.inner.step

    @property
    def notices(self) -> Mapping[str, Any]:
        """The notices of the inner state."""
        return notices_of(self.inner)


class _Beside(NamedTuple):
    """The values beside a transformed update.

    Attributes:
        inner: values of the inner algorithm.
        votes: for each part of the update, 1/2 if it was within its bound and −1/2 if
            not; () without an adaptive clip.
    """

    inner: PyTree
    votes: PyTree


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
        if has_transforms(self.algorithm):
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
        idle = {
            phase.name: _idle_form(phase, server)
            for phase in (
                *self.algorithm.opening(problem),
                *self.algorithm.phases(problem),
            )
            if phase.reference is not None
        }
        plan = self.plan
        if isinstance(plan.code, Feedback):
            wide = tree.at_least_single if plan.noise is not None else tuple
            memories = {
                name: plan.code.first_memory(wide(like)) for name, like in idle.items()
            }
            private = _PrivateState(private, memories)
        bounds: dict[str, Bounds] = {}
        if _is_adaptive(plan):
            bounds = {
                name: plan.clip.first_bounds(len(like)) for name, like in idle.items()
            }
        if _has_state(plan):
            coded = plan.download is not None
            seed: Any = jnp.array(FIRST_SEED, jnp.uint32) if coded else ()
            server = TransformedState(server, bounds, seed)
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
        noise = plan.example_noise
        if noise is None:
            phases = phases_of(problem)
        else:
            phases = private_phases(phases_of, problem, noise)
        if not plan.changes_uploads:
            return phases
        return map_phases(lambda phase: _Wrapper(phase, plan).phase, phases)


class _PrivateState(NamedTuple):
    inner: Private
    memories: Mapping[str, Any]


class _Carry(NamedTuple):
    inner: Carry
    private: Private
    memories: Mapping[str, Any]


class _Wrapper:
    """The functions of a transformed phase."""

    def __init__(self, inner: Phase, plan: Plan) -> None:
        self._inner, self._plan = inner, plan
        self._is_adaptive = _is_adaptive(plan)
        self._has_state = _has_state(plan)
        self._has_memory = isinstance(plan.code, Feedback)
        self._is_private = plan.noise is not None
        # Then the mean is of changes within bounds.
        self._is_bounded = plan.bounding is not None
        self._has_carry = self._has_memory or self._is_private

    @property
    def phase(self) -> Phase:
        inner = self._inner
        has_reference = inner.reference is not None
        keeps_gauge = inner.beside.gauge is not None and not self._is_bounded
        starts = self._has_state or self._has_carry
        return inner._replace(
            broadcast=self.broadcast if self._has_state else inner.broadcast,
            start=self.start if starts else inner.start,
            step=self.step if self._has_carry else inner.step,
            finish=self.finish,
            server=self.server,
            # A mean of bounded changes has no reference.
            reference=self.reference
            if has_reference and not self._is_bounded
            else None,
            beside=Beside(gauge=self.gauge if keeps_gauge else None),
            aggregation=Aggregation(
                self.receive,
                self.mean if has_reference and self._plan.mean is not None else None,
                self._plan.fixed_point is not None,
                self.release if self._is_private else None,
            ),
        )

    def broadcast(self, server: Any) -> Downlink:
        sent = self._exact_downlink(server)
        if self._plan.download is not None:
            sent = self._plan.download.encode(sent, server.seed)
        if not self._is_adaptive:
            return sent
        return sent, server.bounds.get(self._inner.name, ())

    def _exact_downlink(self, server: Any) -> Downlink:
        return self._inner.broadcast(server.inner if self._has_state else server)

    def _split_downlink(self, downlink: Downlink) -> tuple[Downlink, Any]:
        """Return the downlink of the inner algorithm, decoded, and the bounds."""
        received, bounds = downlink if self._is_adaptive else (downlink, None)
        if self._plan.download is not None:
            received = self._plan.download.decode(received)
        return received, bounds

    def start(
        self, downlink: Downlink, private: Any, data: DeviceData, key: RandomKey
    ) -> Carry:
        received, _ = self._split_downlink(downlink)
        memories: Mapping[str, Any] = {}
        if self._has_memory:
            private, memories = private
        carry = self._inner.start(received, private, data, key)
        if not self._has_carry:
            return carry
        # Only a mask needs the state before the work.
        return _Carry(carry, private if self._is_private else (), memories)

    def step(self, carry: Carry, data: DeviceData, key: RandomKey) -> Carry:
        return carry._replace(inner=self._inner.step(carry.inner, data, key))

    def finish(
        self, carry: Carry, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Any, Info]:
        received, _ = self._split_downlink(downlink)
        inner_key, transform_key = jax.random.split(key)
        if not self._has_carry:
            carry = _Carry(carry, (), {})
        upload, private, info = self._inner.finish(carry.inner, received, inner_key)
        self._check(upload)
        idle = () if self._inner.reference is None else self.reference(downlink)
        part = self._bounded(upload, downlink, idle)
        if self._is_private:
            part, private = mask_unless_finite(part, private, carry.private, idle)
        if self._plan.device_noise is not None:
            part = self._noised(part, downlink, idle, transform_key)
        code, memories = self._encoded(part.change, carry.memories, transform_key)
        if self._has_memory:
            private = _PrivateState(private, memories)
        sent = Upload(code, self._beside(part.beside, part.votes))
        if self._plan.fixed_point is not None:
            sent = self._round(sent, downlink, transform_key)
        # Means of reported values have no noise, and no bounds.
        return sent, private, {} if self._is_bounded else info

    def _beside(self, inner: PyTree, votes: PyTree) -> PyTree:
        return _Beside(inner, votes) if self._is_adaptive else inner

    def _split_beside(self, beside: PyTree) -> tuple[PyTree, PyTree]:
        return beside if self._is_adaptive else (beside, ())

    def _check(self, upload: Upload) -> None:
        name = self._inner.name
        if self._inner.reference is None and jax.tree.leaves(upload.update):
            raise ValueError(
                f"with_transforms: phase {name!r} sends an update but has no "
                "reference. Pass Phase(..., reference=...), which returns the update "
                "of an idle device: zeros if devices send gradients."
            )
        inner = self._inner
        transform = type(self._plan.bounding).__name__
        unbounded = inner.beside.units is None and jax.tree.leaves(upload.beside)
        if self._is_bounded and unbounded:
            verb = "protect" if self._is_private else "round"
            raise ValueError(
                f"with_transforms: phase {name!r} sends values beside its update, "
                f"which {transform} cannot {verb} because they have no bound. Pass "
                "Phase(..., beside=Beside(units=...)), or use an algorithm that sends "
                "updates only, such as FedBiO."
            )
        if self._is_bounded and inner.aggregation.receive is not None:
            raise ValueError(
                f"with_transforms: phase {name!r} decodes uploads itself "
                f"(Aggregation.receive), so their norms are not known to {transform}. "
                "Send updates, and pass codes to with_transforms."
            )

    def _bounds(self, downlink: Downlink, idle: tuple[PyTree, ...]) -> Bounds:
        _, shared = self._split_downlink(downlink)
        if shared is None:
            fixed: Bounds = self._plan.clip.first_bounds(len(idle))
            return fixed
        # A dishonest server may send a bound whose noise is rounded to zero.
        return jnp.clip(shared, SMALLEST_SCALE, LARGEST_SCALE)

    def _bounded(
        self, upload: Upload, downlink: Downlink, idle: tuple[PyTree, ...]
    ) -> Contribution:
        """Return the numbers of a device, clipped: under noise, all have bounds."""
        beside, units = upload.beside, self._inner.beside.units
        if self._is_bounded and units is not None:
            received, _ = self._split_downlink(downlink)
            beside = clip_to(units.narrow(beside, received), jnp.ones(()))
        if self._inner.reference is None:
            return Contribution(upload.update, beside, ())
        # A plain tuple, so that the code does not depend on the algorithm's types.
        change: Any = tuple(map(tree.subtract, upload.update, idle))
        if self._is_bounded:
            change = tree.at_least_single(change)
        votes: PyTree = ()
        clip = self._plan.clip
        if clip is not None and jax.tree.leaves(change):
            bounds = self._bounds(downlink, idle)
            if self._is_adaptive:
                votes = jnp.where(norms_of(clip, change) <= bounds, 0.5, -0.5)
            change = clip_parts(clip, change, bounds)
        return Contribution(change, beside, votes)

    def _noised(
        self,
        part: Contribution,
        downlink: Downlink,
        idle: tuple[PyTree, ...],
        key: RandomKey,
    ) -> Contribution:
        """Return the numbers of a device with its share of the noise."""
        noise = self._plan.device_noise
        assert noise is not None, "called with DeviceNoise only"
        change, beside, votes = part
        if self._inner.reference is not None and jax.tree.leaves(change):
            bounds = self._bounds(downlink, idle)
            scale = noise.part_of_one / jnp.sqrt(self._share_of_part(len(bounds)))
            keys = [jax.random.fold_in(key, 3 + row) for row in range(len(bounds))]
            sizes = list(scale * bounds)
            change = map_parts(self._plan.clip, add_normals, change, sizes, keys)
        if self._inner.beside.units is not None:
            size = noise.part_of_one / jnp.sqrt(self._share_of_beside())
            beside = add_normals(beside, size, jax.random.fold_in(key, 2))
        if jax.tree.leaves(votes):
            size = 0.5 * jnp.sqrt(votes.size) * noise.part_of_one / jnp.sqrt(VOTES)
            shift = normal_numbers(jax.random.fold_in(key, 1), votes.shape, votes.dtype)
            votes = votes + jnp.asarray(size, votes.dtype) * shift
        return Contribution(change, beside, votes)

    def _encoded(
        self, change: Any, memories: Mapping[str, Any], key: RandomKey
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the code of a change, and the memories of the errors of codes."""
        code, name = self._plan.code, self._inner.name
        if code is None or self._inner.reference is None:
            return change, memories
        code_key = jax.random.fold_in(key, 0)
        if not isinstance(code, Feedback):
            return code.encode(change, code_key), memories
        change, memory = code.encode(change, memories[name], code_key)
        return change, {**memories, name: memory}

    def _share_of_part(self, parts: int) -> float:
        """Return the share of an exchange's privacy that each part of an update has."""
        rest = 1.0
        rest -= BESIDE if self._inner.beside.units is not None else 0.0
        rest -= VOTES if self._is_adaptive else 0.0
        return rest / parts

    def _share_of_beside(self) -> float:
        return BESIDE if self._inner.reference is not None else 1.0

    def _reaches(
        self, upload: Upload, downlink: Downlink
    ) -> tuple[list[Any], tuple[Any, Any]]:
        """Return the largest magnitudes that levels represent.

        Args:
            upload: numbers or levels of an upload, without the count.
            downlink: downlink of the exchange.

        Returns:
            Magnitudes of each part of the update, and of both types of values beside.
        """
        noise = self._plan.device_noise

        def reach(bound: Any, share: Any, vector: Any = None) -> Any:
            if noise is None:
                return bound
            width = bound if vector is None else vector
            return bound + DEVIATIONS * noise.part_of_one * width / jnp.sqrt(share)

        parts: list[Any] = []
        if self._inner.reference is not None:
            bounds = self._bounds(downlink, self.reference(downlink))
            share = self._share_of_part(len(bounds))
            parts = [reach(bound, share) for bound in bounds]
        _, votes = self._split_beside(upload.beside)
        count = sum(jnp.size(leaf) for leaf in jax.tree.leaves(votes))
        of_votes = reach(0.5, VOTES, 0.5 * max(1, count) ** 0.5)
        return parts, (reach(1.0, self._share_of_beside()), of_votes)

    def _round(self, upload: Upload, downlink: Downlink, key: RandomKey) -> Upload:
        """Return the levels of an upload, and its count."""
        fixed = self._plan.fixed_point
        assert fixed is not None, "called with FixedPoint only"
        parts, (of_beside, of_votes) = self._reaches(upload, downlink)
        update = upload.update
        keys = jax.random.split(jax.random.fold_in(key, 0), len(parts) + 2)
        beside_key, vote_key, *part_keys = keys
        if self._inner.reference is not None:
            update = map_parts(self._plan.clip, fixed.levels, update, parts, part_keys)
        beside, votes = self._split_beside(upload.beside)
        beside = fixed.levels(beside, of_beside, beside_key)
        votes = fixed.levels(votes, of_votes, vote_key)
        levels = Upload(
            tuple(update), Counted(self._beside(beside, votes), jnp.ones((), jnp.int32))
        )
        marked: Upload = mark_unless_finite(levels, upload)
        return marked

    def _unround(self, total: Upload, downlink: Downlink) -> Upload:
        """Return the mean behind a sum of levels."""
        fixed = self._plan.fixed_point
        assert fixed is not None, "called with FixedPoint only"
        upload, count = Upload(total.update, total.beside.beside), total.beside.ones
        parts, (of_beside, of_votes) = self._reaches(upload, downlink)

        def values(levels: PyTree, reach: Any) -> PyTree:
            return fixed.values(levels, count, reach)

        update = upload.update
        if self._inner.reference is not None:
            update = map_parts(self._plan.clip, values, update, parts)
        beside, votes = self._split_beside(upload.beside)
        return Upload(
            tuple(update),
            self._beside(values(beside, of_beside), values(votes, of_votes)),
        )

    def receive(self, upload: Upload, downlink: Downlink) -> Upload:
        if self._plan.fixed_point is not None:
            # Devices limit their own levels; one that does not must not matter more.
            limited = self._plan.fixed_point.limit(upload)
            ones = jnp.minimum(upload.beside.ones, 1)
            return Upload(limited.update, limited.beside._replace(ones=ones))
        received, _ = self._split_downlink(downlink)
        beside, votes = self._split_beside(upload.beside)
        update = upload.update
        if self._inner.reference is not None:
            update = self._decode(update, downlink)
        if self._is_bounded and self._inner.beside.units is not None:
            # Devices clip their own values; one that does not must not matter more.
            if self._plan.device_noise is None:
                beside = clip_to(beside, jnp.ones(()))
        else:
            decoded = self._inner.decode_upload(Upload(update, beside), received)
            update, beside = decoded.update, decoded.beside
        if self._is_adaptive and self._plan.device_noise is None:
            votes = jax.tree.map(lambda vote: jnp.clip(vote, -0.5, 0.5), votes)
        return Upload(update, self._beside(beside, votes))

    def _decode(self, code: Any, downlink: Downlink) -> Any:
        plan, idle = self._plan, self.reference(downlink)
        change, form = code, tuple(idle)
        if self._is_bounded:
            form = tree.at_least_single(form)
        if plan.code is not None:
            change = plan.code.decode(code, _forms(form))
        # Noise makes honest updates longer than their bound.
        if plan.clip is not None and plan.device_noise is None:
            change = clip_parts(plan.clip, change, self._bounds(downlink, idle))
        # Under noise, the sum with a large point would round beyond the bound.
        return change if self._is_bounded else _shifted(idle, change)

    def reference(self, downlink: Downlink) -> tuple[PyTree, ...]:
        received, _ = self._split_downlink(downlink)
        assert self._inner.reference is not None
        return self._inner.reference(received)

    def gauge(self, beside: PyTree, downlink: Downlink) -> tuple[PyTree, ...]:
        received, _ = self._split_downlink(downlink)
        inner, _ = self._split_beside(beside)
        assert self._inner.beside.gauge is not None
        return self._inner.beside.gauge(inner, received)

    def mean(
        self, updates: Any, weights: Float[Array, "devices"], downlink: Downlink
    ) -> Any:
        assert self._plan.mean is not None
        return self._plan.mean(updates, weights, self.reference(downlink))

    def release(
        self, server: Any, mean: Upload, shares: Shares, normals: Upload
    ) -> Upload:
        """Return the mean with noise.

        The mean of changes is added to the point of the server. A device whose upload
        does not count is one whose update is zero: the divisor must not depend on the
        data. If fewer devices than planned added noise, the result is not finite, so
        that nothing is published. The noise on a part of bound C has the standard
        deviation multiplier · C · w / √a, where w is the largest share of a device and
        a the part's share of the privacy of the exchange; these add up to 1.
        """
        downlink = self.broadcast(server)
        if self._plan.fixed_point is not None:
            mean = self._unround(mean, downlink)
        noise = self._plan.server_noise
        if noise is None:
            normals = jax.tree.map(jnp.zeros_like, mean)
        beside, votes = self._split_beside(mean.beside)
        beside_normals, vote_normals = self._split_beside(normals.beside)
        size = 0.0 if noise is None else noise.multiplier * shares.largest
        own = self._plan.device_noise
        if own is not None:
            enough = shares.counted > (own.devices - 0.5) * shares.largest
            shares = shares._replace(counted=jnp.where(enough, shares.counted, jnp.nan))

        def noised(value: PyTree, numbers: PyTree, bound: Any, share: float) -> PyTree:
            width = size * bound / jnp.sqrt(share)
            return jax.tree.map(
                lambda leaf, number: (
                    jnp.asarray(shares.counted, leaf.dtype) * leaf
                    + jnp.asarray(width, leaf.dtype) * number.astype(leaf.dtype)
                ),
                value,
                numbers,
            )

        update = mean.update
        if self._inner.reference is not None:
            # The change is added to the server's exact point, not to its code.
            idle = self._inner.reference(self._exact_downlink(server))
            change = tuple(mean.update)
            bounds = self._bounds(downlink, idle)
            numbers = self._plan.clip.split(tuple(normals.update))
            shares_of_parts = [self._share_of_part(len(bounds))] * len(bounds)
            change = map_parts(
                self._plan.clip, noised, change, numbers, list(bounds), shares_of_parts
            )
            update = _shifted(tree.at_least_single(idle), change)
        share = self._share_of_beside()
        beside = noised(beside, beside_normals, jnp.ones(()), share)
        if self._is_adaptive and jax.tree.leaves(votes):
            bound = 0.5 * jnp.sqrt(votes.size)
            votes = noised(votes, vote_normals, bound, VOTES)
        return Upload(update, self._beside(beside, votes))

    def server(self, server: Any, mean: Upload, key: RandomKey) -> Any:
        inner = server.inner if self._has_state else server
        downlink = self.broadcast(server)
        if self._plan.fixed_point is not None and not self._is_private:
            mean = self._unround(mean, downlink)
            if self._inner.reference is not None:
                idle = tree.at_least_single(self.reference(downlink))
                mean = mean._replace(update=_shifted(idle, mean.update))
        beside, votes = self._split_beside(mean.beside)
        if self._is_bounded and self._inner.beside.units is not None:
            received, _ = self._split_downlink(downlink)
            beside = self._inner.beside.units.widen(beside, received)
        update = self._from_exact_point(server, mean.update)
        following = self._inner.server(inner, Upload(update, beside), key)
        if not self._has_state:
            return following
        bounds = dict(server.bounds)
        if self._inner.name in bounds and jax.tree.leaves(votes):
            name = self._inner.name
            below = jnp.asarray(votes + 0.5, bounds[name].dtype)
            bounds[name] = self._plan.clip.next_bounds(bounds[name], below)
        seed = server.seed
        if self._plan.download is not None:
            (seed,) = random_seeds(jax.random.fold_in(key, NEXT_SEED), 1)
        return TransformedState(following, bounds, seed)

    def _from_exact_point(self, server: Any, update: Any) -> Any:
        """Return a mean update from the server's point in place of the decoded one."""
        reference = self._inner.reference
        # Under noise, `release` has already added the change to the server's point.
        if self._plan.download is None or reference is None or self._is_private:
            return update
        leaves, structure = jax.tree.flatten(update)
        exact = jax.tree.leaves(reference(self._exact_downlink(server)))
        decoded = jax.tree.leaves(self.reference(self.broadcast(server)))
        # The difference comes first: of two numbers that are close, it is exact.
        moved = [
            (a - c.astype(a.dtype)) + b.astype(a.dtype)
            for a, b, c in zip(leaves, exact, decoded, strict=True)
        ]
        return jax.tree.unflatten(structure, moved)


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


def has_transforms(algorithm: Any) -> bool:
    """Return whether an algorithm, or the one that it wraps, has transforms.

    Example:
        >>> from fedbilevel import Clip, FedBiO
        >>> has_transforms(with_transforms(FedBiO(0.1), Clip(1.0)))
        True
        >>> has_transforms(FedBiO(0.1))
        False
    """
    return find_layer(algorithm, Transformed) is not None


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


def _shifted(idle: Any, change: Any) -> Any:
    """Return idle + change in the form and the dtypes of `idle`."""
    leaves, structure = jax.tree.flatten(idle)
    pairs = zip(leaves, jax.tree.leaves(change), strict=True)
    return jax.tree.unflatten(structure, [a + b.astype(a.dtype) for a, b in pairs])


def _idle_form(phase: Phase, server: Server) -> tuple[PyTree, ...]:
    """Return zeros with the form of a phase's update."""
    reference = phase.reference
    assert reference is not None
    server = jax.tree.map(jnp.asarray, server)
    forms = jax.eval_shape(lambda state: reference(phase.broadcast(state)), server)
    return tuple(
        jax.tree.map(lambda form: jnp.zeros(form.shape, form.dtype), part)
        for part in forms
    )


def _forms(change: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)),
        change,
    )


def _is_adaptive(plan: Plan) -> bool:
    return plan.clip is not None and plan.clip.is_adaptive


def _has_state(plan: Plan) -> bool:
    return _is_adaptive(plan) or plan.download is not None


def with_transforms(
    algorithm: FederatedAlgorithm, *transforms: AnyTransform
) -> Transformed:
    """Return an algorithm whose messages are transformed.

    Args:
        algorithm: any algorithm.
        transforms: in this order, any of: `Download`; `ExampleNoise`; a clip (`Clip`,
            `ClipEach`, `AdaptiveClip`); `DeviceNoise`; codes (`TopK`, `RandomK`,
            `Quantise`, `Feedback`) or `FixedPoint`; a robust mean (`TrimmedMean`,
            `GeometricMedian`, `CentredClipping`) or `GaussianNoise`.

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
