"""The server's weighted mean, computed in parts that can be merged."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from fedbilevel.algorithms.protocol import (
    MEAN,
    Aggregation,
    Downlink,
    Info,
    Phase,
    Server,
    Shares,
    Upload,
)
from fedbilevel.data.examples import RandomKey
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.phase_checks import check_next_state
from fedbilevel.engines.protocol import server_key
from fedbilevel.engines.whole_shares import whole_shares
from fedbilevel.mathematics import tree
from fedbilevel.transforms.noise import standard_normals

TOGETHER_BYTES = 200_000
"""Leaves up to this size are summed together in one message."""
NOISE = 1
"""A number folded into the server's key for noise."""


class WeightedMean(NamedTuple):
    """The mean of some devices' uploads, and their deviation from it.

    Attributes:
        weight: sum of the devices' weights.
        upload: mean upload, in single precision or higher; () if uploads are summed.
        deviation: a tree like the upload, with each leaf's weighted sum of squared
            distances from the mean.
        info: mean of the values that devices reported.
        total: sum of integer uploads, each times the whole share of its device; () if
            uploads are averaged.
    """

    weight: Float[Array, ""]
    upload: PyTree
    deviation: PyTree
    info: Info
    total: PyTree = ()


def stacked_mean(
    uploads: PyTree,
    infos: Info,
    weights: Float[Array | np.ndarray, "devices"],
    spread_wanted: Bool[Array, ""] | None = None,
    aggregation: Aggregation = MEAN,
    downlink: Downlink = None,
) -> WeightedMean:
    """Return the mean or sum of uploads stacked along a leading axis.

    An upload of weight zero has no influence, even if it is not finite.

    Args:
        uploads: uploads of all devices.
        infos: values that the devices report.
        weights: weights of the devices.
        spread_wanted: False to return 0 as the deviation; by default it is computed.
        aggregation: mean or sum. Values that the devices report are always averaged.
        downlink: downlink of the exchange, for a robust mean.

    Example:
        >>> import jax.numpy as jnp
        >>> mean = stacked_mean(jnp.array([1.0, 5.0]), {}, jnp.array([0.75, 0.25]))
        >>> float(mean.upload), float(mean.deviation)
        (2.0, 3.0)
    """
    weights = jnp.asarray(weights)
    weight = jnp.sum(weights)
    shares = weights / _divisor(weight)

    # Multiplication and sum replace a matrix product: XLA masks, weights and sums in
    # one pass, with full precision on accelerators that round matrix products.
    def total(factors: Float[Array, "devices"], leaf: Array) -> Array:
        def along(vector: Array) -> Array:
            return vector.reshape(-1, *[1] * (leaf.ndim - 1))

        terms = along(factors.astype(leaf.dtype)) * leaf
        return jnp.sum(jnp.where(along(weights > 0), terms, 0), axis=0)

    def average(leaf: Array) -> Array:
        return total(shares, leaf.astype(accumulator(leaf)))

    def deviate(leaf: Array, mean: Array) -> Float[Array, ""]:
        return jnp.sum(total(weights, (leaf.astype(mean.dtype) - mean[None]) ** 2))

    def add(leaf: Array) -> Array:
        whole = whole_shares(jnp, weights).reshape(-1, *[1] * (leaf.ndim - 1))
        # An excluded upload may have levels of any size.
        terms = jnp.where(whole > 0, whole * leaf, 0)
        return jnp.sum(terms, axis=0, dtype=jnp.int32)

    info = jax.tree.map(average, infos)
    if aggregation.is_sum:
        return WeightedMean(weight, (), (), info, jax.tree.map(add, uploads))
    mean = jax.tree.map(average, uploads)
    if aggregation.mean is not None:
        robust = aggregation.mean(uploads.update, weights, downlink)
        mean = mean._replace(update=robust)

    def spread() -> PyTree:
        return jax.tree.map(deviate, uploads, mean)

    def zeros() -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), mean)

    always = spread_wanted is None
    return WeightedMean(
        weight=weight,
        upload=mean,
        deviation=spread() if always else jax.lax.cond(spread_wanted, spread, zeros),
        info=info,
    )


def merge(first: WeightedMean, second: WeightedMean) -> WeightedMean:
    """Return the mean over two sets of devices, without loss of precision.

    Example:
        >>> import jax.numpy as jnp
        >>> first = stacked_mean(jnp.array([1.0]), {}, jnp.array([0.75]))
        >>> second = stacked_mean(jnp.array([5.0]), {}, jnp.array([0.25]))
        >>> mean = merge(first, second)
        >>> float(mean.upload), float(mean.deviation)
        (2.0, 3.0)
    """
    weight = first.weight + second.weight
    share = second.weight / _divisor(weight)

    def average(a: Array, b: Array) -> Array:
        # In a + share · (b − a), the difference of two finite numbers may be infinite.
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
        total=jax.tree.map(jnp.add, first.total, second.total),
    )


def merge_across(
    mean: WeightedMean, counted: Bool[Array, "*shape"], axis: str
) -> tuple[WeightedMean, Bool[Array, "shards *shape"]]:
    """Return the mean over all shards of a mesh axis, and the masks of all shards.

    It must be called in code mapped over that axis.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> means = WeightedMean(
        ...     jnp.array([0.75, 0.25]), jnp.array([1.0, 5.0]), jnp.zeros(2), {}
        ... )
        >>> counted = jnp.array([[True], [False]])
        >>> mean, masks = jax.vmap(
        ...     lambda *local: merge_across(*local, "shards"), axis_name="shards"
        ... )(means, counted)
        >>> float(mean.upload[0]), float(mean.deviation[0]), masks[0].tolist()
        (2.0, 3.0, [[True], [False]])
    """

    def weighted(leaf: Array) -> Array:
        return mean.weight.astype(leaf.dtype) * leaf

    sums = jax.tree.map(weighted, (mean.upload, mean.info))
    weight, sums, whole = sum_across((mean.weight, sums, mean.total), axis)
    upload, info = jax.tree.map(
        lambda leaf: leaf / _divisor(weight).astype(leaf.dtype), sums
    )

    def deviate(a: Float[Array, ""], local: Array, total: Array) -> Float[Array, ""]:
        return a + mean.weight.astype(a.dtype) * jnp.sum((local - total) ** 2)

    deviation = jax.tree.map(deviate, mean.deviation, mean.upload, upload)
    shards = jnp.arange(jax.lax.axis_size(axis), dtype=jnp.int32)
    is_local = shards == jax.lax.axis_index(axis)
    masks = is_local.reshape(-1, *[1] * counted.ndim) & counted[None]
    deviation, masks = sum_across((deviation, masks.astype(weight.dtype)), axis)
    return WeightedMean(weight, upload, deviation, info, whole), masks > 0


def sum_across(sums: PyTree, axis: str) -> PyTree:
    """Return the sum of every leaf over all shards: one `psum` for all small leaves.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> jax.vmap(lambda a: sum_across({"a": a}, "shards"), axis_name="shards")(
        ...     jnp.array([1.0, 5.0])
        ... )
        {'a': Array([6., 6.], dtype=float32)}
    """
    leaves, structure = jax.tree.flatten(sums)
    # Small leaves are summed together: starting a sum takes as long as sending 100 KB.
    groups: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        alone = leaf.nbytes > TOGETHER_BYTES
        groups.setdefault(index if alone else leaf.dtype, []).append(index)
    for indices in groups.values():
        flat = [leaves[index].ravel() for index in indices]
        total = jax.lax.psum(jnp.concatenate(flat) if flat[1:] else flat[0], axis)
        ends = np.cumsum([leaf.size for leaf in flat])[:-1]
        for index, part in zip(indices, jnp.split(total, ends), strict=True):
            leaves[index] = part.reshape(leaves[index].shape)
    return jax.tree.unflatten(structure, leaves)


def conclude(
    phase: Phase,
    server: Server,
    mean: WeightedMean,
    key: RandomKey,
    largest_share: tree.Scalar,
    normals: PyTree = None,
) -> tuple[Server, PyTree]:
    """Return the next server state, in the dtypes of the last, and the dispersion.

    If no upload was accepted, the state remains unchanged.

    Args:
        phase: the phase.
        server: server state before the exchange.
        mean: mean of the uploads that counted.
        key: random key of the server in this exchange.
        largest_share: largest share of a participant, for `Aggregation.release`.
        normals: standard normal numbers for it; by default drawn from the key.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel.algorithms.momentum import initial_state, local_phase
        >>> from fedbilevel.algorithms.momentum import MomentumUpdate
        >>> from fedbilevel import Upload
        >>> upload = Upload(MomentumUpdate(*jnp.ones((4, 2, 3))))
        >>> mean = stacked_mean(upload, {}, jnp.ones(2))
        >>> phase = local_phase(5, lambda state, data, key: state)
        >>> server = initial_state(jnp.zeros(3), jnp.zeros(3))
        >>> key, share = jax.random.key(0), jnp.array(0.5)
        >>> server, dispersion = conclude(phase, server, mean, key, share)
        >>> server.x, float(dispersion.update.x)
        (Array([1., 1., 1.], dtype=float32), 0.0)
    """
    some = mean.weight > 0
    aggregation = phase.aggregation
    upload = mean.total if aggregation.is_sum else mean.upload
    if aggregation.release is not None:
        if normals is None:
            # The key itself is for the draws of `Phase.server`.
            normals = standard_normals(mean.upload, jax.random.fold_in(key, NOISE))
        shares = Shares(mean.weight, jnp.asarray(largest_share, mean.weight.dtype))
        upload = aggregation.release(server, upload, shares, normals)
    returned = phase.server(server, upload, key)
    check_next_state(phase, returned, server)
    following = jax.tree.map(
        lambda new, old: jnp.where(some, jnp.asarray(new, jnp.result_type(old)), old),
        returned,
        server,
    )
    if aggregation.is_sum:
        # A sum has no spread: a server of secure sums knows no single upload.
        return following, jax.tree.map(lambda leaf: jnp.zeros((), float), mean.total)
    if aggregation.release is not None:
        # The spread of updates has no noise, so a private run does not report it.
        return following, jax.tree.map(jnp.zeros_like, mean.deviation)
    dispersion = jax.tree.map(
        lambda leaf: leaf / _divisor(mean.weight).astype(leaf.dtype), mean.deviation
    )
    return following, dispersion


@partial(jax.jit, static_argnames="program")
def jit_conclude(
    inputs: Inputs,
    mean: WeightedMean,
    largest_share: tree.Scalar,
    normals: PyTree = None,
    *,
    program: PhaseProgram,
) -> tuple[Any, PyTree]:
    """Return the next server state and the dispersion: `conclude`, compiled."""
    phase = program.of(inputs.algorithm)
    key = server_key(inputs.key, inputs.moment)
    return conclude(phase, inputs.server, mean, key, largest_share, normals)


@partial(jax.jit, static_argnames="program")
def jit_stacked_mean(
    inputs: Inputs,
    received: Upload,
    infos: Info,
    shares: Float[Array, "devices"],
    *,
    program: PhaseProgram,
) -> WeightedMean:
    """Return the mean of a phase over stacked uploads: `stacked_mean`, compiled."""
    phase = program.of(inputs.algorithm)
    downlink = phase.broadcast(inputs.server)
    return stacked_mean(received, infos, shares, None, phase.aggregation, downlink)


def _divisor(weight: Float[Array, ""]) -> Float[Array, ""]:
    # A chunk of absent devices has weight 0, and must not turn the mean into NaN.
    return jnp.where(weight > 0, weight, 1)


def accumulator(leaf: Any) -> np.dtype:
    """Return the dtype in which uploads are averaged.

    Example:
        >>> import jax.numpy as jnp
        >>> accumulator(jnp.ones(2, jnp.bfloat16))
        dtype('float32')
    """
    # A mean in half precision would lose the differences of many uploads.
    return np.dtype(np.float64 if leaf.dtype == np.float64 else np.float32)
