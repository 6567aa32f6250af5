"""The server's weighted mean, in pieces that can be merged in any number."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Phase,
    Server,
)
from fedbilevel.data.examples import RandomKey
from fedbilevel.engines.phase_checks import check_next_state
from fedbilevel.engines.protocol import Moment, PhaseReference, server_key
from fedbilevel.mathematics.problem import BilevelProblem

TOGETHER_BYTES = 200_000
"""Leaves no larger than this are sent in one message."""


class WeightedMean(NamedTuple):
    """The mean of some devices' uploads, and their spread about it.

    Attributes:
        weight: the sum of the devices' weights.
        upload: the mean upload, at no less than single precision.
        deviation: a tree like the upload with each leaf's weighted sum of squared
            distances from that mean.
        info: the mean of what devices reported.

    Example:
        >>> import jax.numpy as jnp
        >>> WeightedMean(jnp.array(1.0), jnp.ones(2), jnp.array(0.0), {}).info
        {}
    """

    weight: Float[Array, ""]
    upload: PyTree
    deviation: PyTree
    info: Info


def stacked_mean(
    uploads: PyTree,
    infos: Info,
    weights: Float[Array | np.ndarray, "devices"],
    spread_wanted: Bool[Array, ""] | None = None,
) -> WeightedMean:
    """Return the mean of uploads stacked along a leading axis.

    An upload of weight zero counts for nothing, even where it is not finite.

    Args:
        uploads: of all devices.
        infos: what they report.
        weights: of the devices.
        spread_wanted: whether the deviation is worked out, and not left at 0; always by
            default.

    Example:
        >>> import jax.numpy as jnp
        >>> mean = stacked_mean(jnp.array([1.0, 5.0]), {}, jnp.array([0.75, 0.25]))
        >>> float(mean.upload), float(mean.deviation)
        (2.0, 3.0)
    """
    weights = jnp.asarray(weights)
    weight = jnp.sum(weights)
    shares = weights / _divisor(weight)

    # Multiply and add rather than a matrix product: masked, weighted and summed in one
    # pass, and at full precision on accelerators that round products by default.
    def total(factors: Float[Array, "devices"], leaf: Array) -> Array:
        def along(vector: Array) -> Array:
            return vector.reshape(-1, *[1] * (leaf.ndim - 1))

        terms = along(factors.astype(leaf.dtype)) * leaf
        return jnp.sum(jnp.where(along(weights > 0), terms, 0), axis=0)

    def average(leaf: Array) -> Array:
        return total(shares, leaf.astype(accumulator(leaf)))

    def deviate(leaf: Array, mean: Array) -> Float[Array, ""]:
        return jnp.sum(total(weights, (leaf.astype(mean.dtype) - mean[None]) ** 2))

    mean = jax.tree.map(average, uploads)

    def spread() -> PyTree:
        return jax.tree.map(deviate, uploads, mean)

    def none() -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), mean)

    always = spread_wanted is None
    return WeightedMean(
        weight=weight,
        upload=mean,
        deviation=spread() if always else jax.lax.cond(spread_wanted, spread, none),
        info=jax.tree.map(average, infos),
    )


def merge(first: WeightedMean, second: WeightedMean) -> WeightedMean:
    """Return the mean over both sets of devices, without loss of precision.

    Example:
        >>> import jax.numpy as jnp
        >>> one = stacked_mean(jnp.array([1.0]), {}, jnp.array([0.75]))
        >>> two = stacked_mean(jnp.array([5.0]), {}, jnp.array([0.25]))
        >>> mean = merge(one, two)
        >>> float(mean.upload), float(mean.deviation)
        (2.0, 3.0)
    """
    weight = first.weight + second.weight
    share = second.weight / _divisor(weight)

    def average(a: Array, b: Array) -> Array:
        # Not a + share · (b − a): a difference of two finite numbers may be infinite.
        part = share.astype(a.dtype)
        return (1 - part) * a + part * b

    def deviate(
        a: Float[Array, ""], b: Float[Array, ""], mean_a: Array, mean_b: Array
    ) -> Float[Array, ""]:
        between = jnp.sum((mean_b - mean_a) ** 2)
        return a + b + (first.weight * share).astype(a.dtype) * between

    return WeightedMean(
        weight=weight,
        upload=jax.tree.map(average, first.upload, second.upload),
        deviation=jax.tree.map(
            deviate, first.deviation, second.deviation, first.upload, second.upload
        ),
        info=jax.tree.map(average, first.info, second.info),
    )


def merge_across(
    mean: WeightedMean, counted: Bool[Array, "*own"], axis: str
) -> tuple[WeightedMean, Bool[Array, "shards *own"]]:
    """Return the mean over all shards of a mesh axis, in code mapped over that axis.

    And who counted on each of them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> means = WeightedMean(
        ...     jnp.array([0.75, 0.25]), jnp.array([1.0, 5.0]), jnp.zeros(2), {}
        ... )
        >>> counted = jnp.array([[True], [False]])
        >>> mean, who = jax.vmap(
        ...     lambda *own: merge_across(*own, "shards"), axis_name="shards"
        ... )(means, counted)
        >>> float(mean.upload[0]), float(mean.deviation[0]), who[0].tolist()
        (2.0, 3.0, [[True], [False]])
    """

    def weighted(leaf: Array) -> Array:
        return mean.weight.astype(leaf.dtype) * leaf

    sums = jax.tree.map(weighted, (mean.upload, mean.info))
    weight, sums = sum_across((mean.weight, sums), axis)
    upload, info = jax.tree.map(
        lambda leaf: leaf / _divisor(weight).astype(leaf.dtype), sums
    )

    def deviate(a: Float[Array, ""], own: Array, all_: Array) -> Float[Array, ""]:
        return a + mean.weight.astype(a.dtype) * jnp.sum((own - all_) ** 2)

    deviation = jax.tree.map(deviate, mean.deviation, mean.upload, upload)
    shards = jnp.arange(jax.lax.axis_size(axis), dtype=jnp.int32)
    mine = shards == jax.lax.axis_index(axis)
    who = mine.reshape(-1, *[1] * counted.ndim) & counted[None]
    deviation, who = sum_across((deviation, who.astype(weight.dtype)), axis)
    return WeightedMean(weight, upload, deviation, info), who > 0


def sum_across(tree: PyTree, axis: str) -> PyTree:
    """Return the sum over all shards of every leaf: one `psum` for all small ones.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> jax.vmap(lambda a: sum_across({"a": a}, "shards"), axis_name="shards")(
        ...     jnp.array([1.0, 5.0])
        ... )
        {'a': Array([6., 6.], dtype=float32)}
    """
    leaves, structure = jax.tree.flatten(tree)
    # Small leaves travel together, as a sum takes as long to begin as to send 100 KB.
    parcels: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        alone = leaf.nbytes > TOGETHER_BYTES
        parcels.setdefault(place if alone else leaf.dtype, []).append(place)
    for places in parcels.values():
        flat = [leaves[place].ravel() for place in places]
        total = jax.lax.psum(jnp.concatenate(flat) if flat[1:] else flat[0], axis)
        ends = np.cumsum([leaf.size for leaf in flat])[:-1]
        for place, part in zip(places, jnp.split(total, ends), strict=True):
            leaves[place] = part.reshape(leaves[place].shape)
    return jax.tree.unflatten(structure, leaves)


def conclude(
    phase: Phase, server: Server, mean: WeightedMean, key: RandomKey
) -> tuple[Server, PyTree]:
    """Return the server's next state, in the types of its last, and the dispersion.

    Where no upload could be used, the state stays as it was.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.algorithms.momentum import initial_state, local_phase
        >>> from fedbilevel.algorithms.momentum import MomentumUpdate
        >>> from fedbilevel import Upload
        >>> upload = Upload(MomentumUpdate(*jnp.ones((4, 2, 3))))
        >>> mean = stacked_mean(upload, {}, jnp.ones(2))
        >>> phase = local_phase(5, lambda state, data, key: state)
        >>> server = initial_state(jnp.zeros(3), jnp.zeros(3))
        >>> server, dispersion = conclude(phase, server, mean, jax.random.key(0))
        >>> server.x, float(dispersion.update.x)
        (Array([1., 1., 1.], dtype=float32), 0.0)
    """
    some = mean.weight > 0
    returned = phase.server(server, mean.upload, key)
    check_next_state(phase, returned, server)
    following = jax.tree.map(
        lambda new, old: jnp.where(some, jnp.asarray(new, jnp.result_type(old)), old),
        returned,
        server,
    )
    dispersion = jax.tree.map(
        lambda leaf: leaf / _divisor(mean.weight).astype(leaf.dtype), mean.deviation
    )
    return following, dispersion


@partial(jax.jit, static_argnames=("problem", "reference"))
def jit_conclude(
    algorithm: FederatedAlgorithm,
    server: Server,
    mean: WeightedMean,
    key: RandomKey,
    moment: Moment,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> tuple[Any, PyTree]:
    """Return the server's next state and the dispersion, by a program of its own.

    Example:
        >>> jit_conclude.__name__
        'jit_conclude'
    """
    phase = reference.of(algorithm, problem)
    return conclude(phase, server, mean, server_key(key, moment))


def _divisor(weight: Float[Array, ""]) -> Float[Array, ""]:
    # A group of absent devices has no mean, and must not turn others' into NaN.
    return jnp.where(weight > 0, weight, 1)


def accumulator(leaf: Any) -> np.dtype:
    """Return the type in which uploads are averaged.

    Example:
        >>> import jax.numpy as jnp
        >>> accumulator(jnp.ones(2, jnp.bfloat16))
        dtype('float32')
    """
    # A mean of many half-precision uploads would lose what distinguishes them.
    return np.dtype(np.float64 if leaf.dtype == np.float64 else np.float32)
