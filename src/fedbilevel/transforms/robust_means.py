"""Robust means: means of updates that a minority of bad devices cannot move far.

Each is a function of the stacked updates of all devices, so the engine must hold all
uploads of an exchange at once; a plain mean can read them one by one. Weights are those
of the plain mean, such as numbers of examples, and "a share of the devices" means a
share of the weight. A device of weight 0 has no influence, even if its update is not
finite; without any weight, a mean is `idle`, the update of a device that takes no step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from fedbilevel.mathematics.settings import (
    Count,
    Fraction,
    Range,
    Rate,
    check_ranges,
    register,
)
from fedbilevel.mathematics.tree import Scalar

Share: TypeAlias = Annotated[
    Scalar,
    Range(at_least=0.0, below=0.5, kind="a share", remark="0.5 leaves no device"),
]
"""A share of the devices that leaves a majority of the others."""


@register
@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its smallest and its largest values.

    Each end loses values of the weight `share`; a value across the boundary loses a
    part of its weight, so the mean is continuous in updates, weights and share.

    It withstands bad devices of any total weight up to `share`: each coordinate stays
    within the range of the other devices. The engine holds all uploads of an exchange
    at once, and sorted copies of each variable with their weights.

    Reference: Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed
    learning: towards optimal statistical rates", ICML 2018, Definition 2; here with
    weights.

    Attributes:
        share: share of the total weight that each end of a coordinate loses, below 0.5.

    Example:
        >>> updates = (jnp.array([[1.0], [2.0], [3.0], [1e30]]),)
        >>> idle = (jnp.zeros(1),)
        >>> TrimmedMean(share=0.25)(updates, jnp.ones(4), idle)
        (Array([2.5], dtype=float32),)
    """

    share: Share

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(
        self, updates: PyTree, weights: Float[Array, "devices"], idle: PyTree
    ) -> PyTree:
        """Return the mean, in single precision or higher."""
        return jax.tree.map(
            lambda leaf, rest: self._trim(leaf, weights, rest),
            *_present(updates, weights, idle),
        )

    def _trim(
        self,
        values: Float[Array, "devices *shape"],
        weights: Float[Array, "devices"],
        rest: Float[Array, "*shape"],
    ) -> Float[Array, "*shape"]:
        # A loop stores values. Otherwise XLA may compute it in each use again,
        # with other last bits, but values at the bounds are found by their bits. XLA
        # removes a loop that does nothing.
        values = jax.lax.fori_loop(
            0, 2, lambda turn, same: jnp.where(turn < 2, same, 0), values
        )
        low, high = weighted_bounds(values, weights, self.share)
        mass = _along(_shares(weights, values.dtype), values)
        share = jnp.asarray(self.share, values.dtype)

        def portion(bound: Array, beyond: Array) -> Array:
            # A positive least portion leaves some weight if the share is almost 0.5.
            outside = jnp.sum(jnp.where(beyond, mass, 0), axis=0)
            ties = jnp.sum(jnp.where(values == bound[None], mass, 0), axis=0)
            least = np.finfo(values.dtype).eps * ties
            return jnp.clip(outside + ties - share, least, ties) / _or_one(ties)

        lowest, highest = values <= low[None], values >= high[None]
        first = portion(low, values < low[None])
        last = portion(high, values > high[None])
        portions = jnp.where(lowest, first[None], jnp.where(highest, last[None], 1))
        outside = (values < low[None]) | (values > high[None])
        parts = jnp.where(outside, 0, mass * portions)
        total = jnp.sum(parts, axis=0)
        terms = parts / _or_one(total)[None] * values
        mean = jnp.sum(jnp.where(parts > 0, terms, 0), axis=0)
        return jnp.where(total > 0, mean, rest)


@register
@dataclass(frozen=True)
class GeometricMedian:
    """The point with the smallest weighted sum of distances to all updates.

    Distances are of all variables together. The smoothed Weiszfeld algorithm starts at
    the median of each coordinate; each step averages the updates with weights divided
    by their distances.

    It withstands bad devices of a total weight α < 1/2. If all others are within a
    distance r of some point, then the point where the steps end is within r times the
    larger of (1 − α) / √(1 − 2α) (Minsker, "Geometric median and robust estimation in
    Banach spaces", Bernoulli 2015, Lemma 2.1) and (1 + s) / (1 − s), where s is the
    smoothing, however far updates are from 0. The engine holds all uploads of an
    exchange at once.

    The second term: at a distance of at least r (1 + s) / (1 − s), all honest devices
    are beyond the smoothed distance, which is at most s times the distance of the
    farthest one, and the lemma's proof applies.

    Reference: Pillutla, Kakade and Harchaoui, "Robust aggregation for federated
    learning", IEEE Transactions on Signal Processing 2022.

    Attributes:
        steps: number of steps. With a share α of bad devices a step divides the error
            of the start, at most √coordinates times r, by about (1 − α) / α, once it
            has left the bad devices: up to log(1/s) / log((1 − α) / α) more steps.
            Above 40 % of bad devices, 32 steps may be too few.
        smoothing: shortest distance by which a weight is divided (ν in the reference),
            in units of the median device's distance from the current point: the
            result scales with the spread of the updates, not with their length.

    Example:
        >>> updates = (jnp.array([[1.0], [2.0], [3.0], [3.0], [1e30]]),)
        >>> idle = (jnp.zeros(1),)
        >>> GeometricMedian(steps=50)(updates, jnp.ones(5), idle)[0].round(2).tolist()
        [3.0]
    """

    steps: Count = 32
    smoothing: Fraction = 1e-3

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(
        self, updates: PyTree, weights: Float[Array, "devices"], idle: PyTree
    ) -> PyTree:
        """Return the median, in single precision or higher."""
        updates, idle = _present(updates, weights, idle)
        if not jax.tree.leaves(updates):
            return idle
        present = jnp.any(weights > 0)

        def centre(leaf: Array, rest: Array) -> Array:
            median, _ = weighted_bounds(leaf, weights, 0.5)
            return jnp.where(present, median, rest)

        # A unit of length from `idle` would be large where devices agree closely: all
        # honest devices would be within the smoothed distance.
        def least(lengths: Float[Array, "devices"]) -> Float[Array, ""]:
            typical, _ = weighted_bounds(lengths, weights, 0.5)
            return jnp.asarray(self.smoothing, lengths.dtype) * typical

        def step(_: Any, point: PyTree) -> PyTree:
            return weiszfeld_step(updates, weights, point, least)

        start = jax.tree.map(centre, updates, idle)
        return jax.lax.fori_loop(0, self.steps, step, start)


def weiszfeld_step(
    updates: PyTree,
    weights: Float[Array, "devices"],
    point: PyTree,
    least: Callable[[Float[Array, "devices"]], Scalar],
) -> PyTree:
    """Return the mean of updates with weights divided by distances from a point.

    Args:
        updates: updates of all devices.
        weights: weights of the devices.
        point: current point.
        least: function from the distances to the shortest one that is divided by.

    Example:
        >>> updates = (jnp.array([0.0, 1.0, 4.0]),)
        >>> weiszfeld_step(updates, jnp.ones(3), (jnp.array(2.0),), lambda _: 0.1)
        (Array(1.5, dtype=float32),)
    """
    directions, length = _differences(updates, point)
    shares = _shares(weights, length.dtype)
    divisor = jnp.maximum(length, jnp.asarray(least(length), length.dtype))
    # Distances are divided by the smallest, because 1 / distance may overflow; the
    # result does not depend on it. It is 0 if most devices are at the point, which is
    # then the median, and infinite without any weight.
    least_divisor = jnp.min(jnp.where(shares > 0, divisor, jnp.inf))
    nearest = jax.lax.stop_gradient(
        jnp.where(jnp.isfinite(least_divisor), least_divisor, 0)
    )
    divisor = _or_one(divisor)
    pull = shares * jnp.minimum(length / divisor, 1)
    stride = nearest / _or_one(jnp.sum(shares * (nearest / divisor)))
    return _step(point, stride, directions, pull)


@register
@dataclass(frozen=True)
class CentredClipping:
    """The mean of updates whose distances from a centre are clipped.

    The first centre is `idle`; each step adds the mean of the clipped differences to
    the centre: v ← v + Σ w_k (u_k − v) min(1, radius / ‖u_k − v‖). Norms are of all
    variables together.

    A bad device moves each step's mean by at most its share of the weight times the
    radius, and the result is within steps × radius of `idle` whatever devices send. If
    bad devices have a total weight δ < 1/2 and the radius exceeds all distances
    between the others and the centres, then the result's distance from the others'
    mean tends to at most radius × δ / (1 − δ). The engine holds all uploads of an
    exchange at once.

    Reference: Karimireddy, He and Jaggi, "Learning from history for Byzantine robust
    optimization", ICML 2021, rule CCLIP; there, the first centre is the last mean.

    Attributes:
        radius: largest distance from the centre that is not clipped.
        steps: number of steps.

    Example:
        >>> updates = (jnp.array([[1.0], [2.0], [3.0], [1e30]]),)
        >>> idle = (jnp.zeros(1),)
        >>> CentredClipping(radius=4.0)(updates, jnp.ones(4), idle)
        (Array([2.5], dtype=float32),)
    """

    radius: Rate
    steps: Count = 1

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(
        self, updates: PyTree, weights: Float[Array, "devices"], idle: PyTree
    ) -> PyTree:
        """Return the mean, in single precision or higher."""
        updates, idle = _present(updates, weights, idle)
        if not jax.tree.leaves(updates):
            return idle

        def step(_: Any, centre: PyTree) -> PyTree:
            directions, length = _differences(updates, centre)
            radius = jnp.asarray(self.radius, length.dtype)
            pull = _shares(weights, length.dtype) * jnp.minimum(length, radius)
            return _step(centre, jnp.ones((), length.dtype), directions, pull)

        return jax.lax.fori_loop(0, self.steps, step, idle)


class _Differences(NamedTuple):
    """Differences from a point: vectors of length 1 or 0, and lengths."""

    direction: PyTree
    length: Float[Array, "devices"]


def _present(
    updates: PyTree, weights: Float[Array, "devices"], idle: PyTree
) -> tuple[PyTree, PyTree]:
    """Return updates and `idle` in the plain mean's dtypes, `idle` in absent rows.

    Absent rows may be NaN, which would spread into gradients even through a mask after
    the arithmetic.
    """

    def widen(leaf: Array, like: Array) -> Array:
        double = like.dtype == np.float64
        return jnp.asarray(leaf, np.float64 if double else np.float32)

    def fill(leaf: Array, rest: Array) -> Array:
        return jnp.where(_along(weights, leaf) > 0, widen(leaf, leaf), rest[None])

    rests = jax.tree.map(widen, idle, updates)
    return jax.tree.map(fill, updates, rests), rests


def _shares(weights: Float[Array, "devices"], dtype: np.dtype) -> Array:
    shares = weights / _or_one(jnp.sum(weights))
    return shares.astype(dtype)


def _differences(updates: PyTree, point: PyTree) -> _Differences:
    """Return the differences of all updates from a point.

    Entries are divided by the largest, because squares of tiny numbers underflow and
    squares of huge numbers overflow. Lengths and directions do not depend on that
    scale, so its derivative is omitted.
    """
    leaves, structure = jax.tree.flatten(
        jax.tree.map(lambda leaf, centre: leaf - centre[None], updates, point)
    )
    widest = np.result_type(*(leaf.dtype for leaf in leaves))

    def largest(leaf: Array) -> Array:
        inner = tuple(range(1, leaf.ndim))
        return jnp.max(jnp.abs(leaf), axis=inner, initial=0).astype(widest)

    def squares(leaf: Array) -> Array:
        inner = tuple(range(1, leaf.ndim))
        return jnp.sum(leaf.astype(widest) ** 2, axis=inner)

    scale = jax.lax.stop_gradient(
        jnp.max(jnp.stack([largest(leaf) for leaf in leaves]), axis=0)
    )
    unit = _or_one(scale)
    parts = [leaf / _along(unit, leaf).astype(leaf.dtype) for leaf in leaves]
    total = jnp.sum(jnp.stack([squares(part) for part in parts]), axis=0)
    # The derivative of a root at 0 is infinite; a difference of 0 has no direction.
    root = jnp.sqrt(jnp.where(scale > 0, total, 1))
    directions = [part / _along(root, part).astype(part.dtype) for part in parts]
    length = jnp.where(scale > 0, scale * root, 0)
    return _Differences(jax.tree.unflatten(structure, directions), length)


def _step(
    point: PyTree,
    stride: Float[Array, ""],
    directions: PyTree,
    pull: Float[Array, "devices"],
) -> PyTree:
    def move(leaf: Array, direction: Array) -> Array:
        pulls = _along((stride * pull).astype(leaf.dtype), direction)
        return leaf + jnp.sum(pulls * direction, axis=0)

    return jax.tree.map(move, point, directions)


def weighted_bounds(
    values: Float[Array, "devices *shape"],
    weights: Float[Array, "devices"],
    share: Scalar,
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Return the values of each coordinate at the shares `share` and 1 − `share`.

    With a share of 0.5 or slightly less, both are weighted medians. Each is a value of
    a device and has no derivative. Bisection of the order of floating-point numbers
    takes as many passes as a number has bits: XLA's sort took 8 times longer on a CPU.

    Example:
        >>> values = jnp.array([5.0, 1.0, 3.0, 2.0, 4.0])
        >>> low, high = weighted_bounds(values, jnp.ones(5), 0.25)
        >>> float(low), float(high)
        (2.0, 4.0)
    """
    values, weights, share = jax.lax.stop_gradient(
        (values, weights, jnp.asarray(share, values.dtype))
    )
    double = values.dtype == np.float64
    whole = np.int64 if double else np.int32
    # Whole weights have exact sums: a rounding error times 1e30 would not be small.
    unit = 2 ** (60 if double else 30)
    least, most = np.iinfo(whole).min, np.iinfo(whole).max
    mass = jnp.round(_shares(weights, values.dtype) * unit).astype(whole)
    total = jnp.sum(mass, dtype=whole)
    # The margin exceeds the rounding of `mass` and `share`: bad devices of exactly the
    # total weight `share` are beyond the bounds.
    margin = 4 * np.finfo(values.dtype).eps + len(values) / unit
    cut = jnp.minimum(share + jnp.minimum(share, margin), 0.5)
    below = jnp.ceil(cut * unit).astype(whole)

    # As integers, negative floating-point numbers have the reverse order.
    bits = jax.lax.bitcast_convert_type(values, whole)
    keys = jnp.where(bits < 0, bits ^ most, bits)

    def search(wanted: Array) -> Array:
        def halve(_: Any, limits: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = limits
            # low + high may overflow.
            middle = (low & high) + ((low ^ high) >> 1)
            upto = jnp.sum(
                jnp.where(keys <= middle[None], _along(mass, keys), 0),
                axis=0,
                dtype=whole,
            )
            reached = upto >= wanted
            return jnp.where(reached, low, middle + 1), jnp.where(reached, middle, high)

        limits = (
            jnp.full(keys.shape[1:], least, whole),
            jnp.full(keys.shape[1:], most, whole),
        )
        key, _ = jax.lax.fori_loop(0, 8 * np.dtype(whole).itemsize, halve, limits)
        return jax.lax.bitcast_convert_type(
            jnp.where(key < 0, key ^ most, key), values.dtype
        )

    wanted = jnp.maximum(below, 1)
    return search(wanted), search(jnp.maximum(total - below, wanted))


def _along(vector: Shaped[Array, "devices"], leaf: Array) -> Array:
    return vector.reshape(-1, *[1] * (leaf.ndim - 1))


def _or_one(divisor: Array) -> Array:
    # Without any weight or difference, a quotient is 0 rather than NaN.
    return jnp.where(divisor > 0, divisor, 1)
