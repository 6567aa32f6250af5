"""Settling: detect that y and z still move steadily at the end of a run.

Where the curvature of the lower loss is small, gradient steps of a common rate move y
slowly and steadily for the whole run, although its gradient is small and hardly
changes. Elsewhere y has reached y*(x), and moves to and fro with the noise of batches.
So the last fifth of a run, in which x hardly moves, is cut into eight parts. A
coordinate has not settled if its mean gradients in the eight parts agree (they exceed
their standard error 5.5 times), and are at least half of its mean gradient over the
whole run. The server knows both from its own states: nothing more is sent.
"""

import math
from typing import NamedTuple

import jax
from jaxtyping import Bool, Float, Int, PyTree

from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.arrays import Array

PARTS = 8
"""The number of parts of the last rounds."""
SHARE = 5
"""The last rounds are one in so many: x then moves by a thirtieth of its usual rate."""
FEWEST_ROUNDS = 2 * PARTS * SHARE
"""The fewest rounds of a run that is judged: momentum alone is steady for a while."""
STEADY = 30.0
"""The least square of a steady mean gradient, in squares of its standard error."""
REMAINING = 0.5
"""The least mean gradient of the last rounds, relative to that of the whole run."""
MOST_UNSETTLED = 0.15
"""The least share of coordinates that have not settled, of y or of z, for a verdict."""
SAMPLED = 1024
"""The most coordinates of y, and of z, that are watched."""


class Settling(NamedTuple):
    """Statistics of the moves of y and z.

    Vectors have one entry for each watched coordinate of y, then of z.

    Attributes:
        start: values at the start of the run.
        mark: values at the start of the current part.
        path: sum of the rates of all steps.
        marked: `path` at the start of the current part.
        mean: mean gradient of the parts so far.
        spread: sum of the squared distances of the parts' gradients from their mean.
        unsettled: 1 if the lower problem has not been solved; 0 if it has, or before
            the end.
    """

    start: Float[Array, "watched"]
    mark: Float[Array, "watched"]
    path: Float[Array, ""]
    marked: Float[Array, ""]
    mean: Float[Array, "watched"]
    spread: Float[Array, "watched"]
    unsettled: Int[Array, ""]


def new_settling(y: PyTree, z: PyTree) -> Settling:
    """Return the statistics at the start of a run.

    Example:
        >>> import jax.numpy as jnp
        >>> new_settling(jnp.ones(3000), jnp.zeros(3000)).start.shape
        (2000,)
    """
    start = _watched(y, z)
    zero, none = arrays.number(0.0, like=start), arrays.constant(0, like=start)
    return Settling(start, start, zero, zero, 0 * start, 0 * start, none)


def observe(
    settling: Settling,
    y: PyTree,
    z: PyTree,
    *,
    rate: Float[Array, ""],
    done: int | Int[Array, ""],
    rounds: int,
) -> Settling:
    """Return the statistics after a round, with a verdict after the last one.

    Args:
        settling: statistics before the round.
        y: lower variable after the round.
        z: adjoint variable after the round.
        rate: sum of the rates of the round's steps.
        done: number of rounds that made steps so far.
        rounds: number of rounds of the run that make steps.

    Example:
        A coordinate of curvature 1e-4 and one of curvature 1, with noise:

        >>> import jax, jax.numpy as jnp
        >>> curvature = jnp.array([1.0, 1e-4])
        >>> y, zero, rate = jnp.zeros(2), jnp.zeros(2), jnp.array(0.5)
        >>> settling = new_settling(y, zero)
        >>> for done in jnp.arange(1, 201):
        ...     noise = 0.01 * jax.random.normal(jax.random.key(done), 2)
        ...     y = y - rate * curvature * (y - 1.0 + noise)
        ...     settling = observe(settling, y, zero, rate=rate, done=done, rounds=200)
        >>> int(settling.unsettled)
        1
    """
    width = rounds // SHARE // PARTS
    if rounds < FEWEST_ROUNDS:
        return settling
    now, path = _watched(y, z), settling.path + rate
    since = done - (rounds - PARTS * width)
    is_end = (since >= 0) & (since % width == 0)
    number = arrays.maximum(since // width, arrays.constant(1, like=now))
    length = path - settling.marked
    gradient = (now - settling.mark) / arrays.where(length > 0, length, 1.0)
    distance = gradient - settling.mean
    mean = settling.mean + distance / arrays.number(number, like=now)
    counts = is_end & (since > 0)
    following = settling._replace(
        path=path,
        mark=arrays.where(is_end, now, settling.mark),
        marked=arrays.where(is_end, path, settling.marked),
        mean=arrays.where(counts, mean, settling.mean),
        spread=arrays.where(
            counts, settling.spread + distance * (gradient - mean), settling.spread
        ),
    )
    before = settling.unsettled
    verdict = arrays.cast((done == rounds) & _is_unsettled(following, now), before)
    return following._replace(unsettled=before + verdict)


def _is_unsettled(settling: Settling, now: Float[Array, "watched"]) -> Bool[Array, ""]:
    mean, error = settling.mean, settling.spread / (PARTS * (PARTS - 1))
    path = arrays.where(settling.path > 0, settling.path, 1.0)
    overall = (now - settling.start) / path
    steady = mean * mean > STEADY * error
    remains = arrays.absolute(mean) > REMAINING * arrays.absolute(overall)
    unsettled = arrays.number(steady & remains, like=now)
    half = len(unsettled) // 2
    shares = arrays.mean(unsettled[:half]), arrays.mean(unsettled[half:])
    verdict: Bool[Array, ""] = arrays.maximum(*shares) >= MOST_UNSETTLED
    return verdict


def _watched(y: PyTree, z: PyTree) -> Float[Array, "watched"]:
    entries: Array = arrays.namespace(y, z).concat([*_sample(y), *_sample(z)])
    return entries


def _sample(variable: PyTree) -> list[Array]:
    """Return every n-th entry of each array, at most about `SAMPLED` of all."""
    leaves = jax.tree.leaves(variable)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    step = max(1, -(-size // SAMPLED))
    return [
        arrays.wide(arrays.at_least_single(leaf.reshape(-1)[::step])) for leaf in leaves
    ]
