"""Guard rails of a run: when to step back, where to, and how much slower to go on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

FACTOR = 4.0
"""How many times its scale above its latest values a loss is that has exploded."""
FLOOR = 0.05
"""Of the loss before x moved, in that scale: near 0, changes of scale mean nothing."""
SMOOTHING = 0.1
"""Of a new round in the average of the latest."""

MOST_SETBACKS = 5
"""Setbacks of a run, but for those that most devices ask for: what a few report may be
wrong, and a device that reports the same in every round would stop the run for good."""
RECOVERY = 1.05
"""By how much the rates grow in a round after a setback, until they are as before."""


class Guard(NamedTuple):
    """What is known of the loss, and where to step back to.

    Attributes:
        good: the last good state.
        level: the largest loss before x moved at its full rate.
        smooth: the average loss of the latest rounds.
        lowest: the smallest of these averages.
        noise: how far the loss of a round is from the average, on average.
        shrinkage: multiplies all rates: 1, halved by a setback, and growing again.
        setbacks: how often the run stepped back.
        begun: whether any round has not diverged, so that there is a loss to judge by.

    Example:
        >>> import jax.numpy as jnp
        >>> float(new_guard((), jnp.zeros(())).shrinkage)
        1.0
    """

    good: PyTree
    level: Float[Array, ""]
    smooth: Float[Array, ""]
    lowest: Float[Array, ""]
    noise: Float[Array, ""]
    shrinkage: Float[Array, ""]
    setbacks: Int[Array, ""]
    begun: Bool[Array, ""]


def new_guard(state: PyTree, zero: Float[Array, ""]) -> Guard:
    """Return a guard that knows nothing yet, and would step back to a state.

    Args:
        state: where a run begins.
        zero: 0 in the precision of the loss.

    Example:
        >>> import jax.numpy as jnp
        >>> int(new_guard((), jnp.zeros(())).setbacks)
        0
    """
    no = jnp.asarray(False)
    return Guard(state, zero, zero, zero, zero, zero + 1, jnp.asarray(0), no)


def judge(
    guard: Guard,
    state: PyTree,
    loss: Float[Array, ""],
    *,
    warm: Bool[Array, ""],
    broken: Bool[Array, ""],
    doubtful: Bool[Array, ""],
) -> tuple[Guard, Bool[Array, ""]]:
    """Return what is known after a round, and whether to step back.

    There are three reasons to step back. The round's steps diverged. Its loss is
    further above the average of the latest rounds than four times the sum of that
    average, of its noise, and of a twentieth of the level before x moved. Or the
    average itself is above that level by four times its noise: the run is worse off
    than without moving x. Before x moves at its full rate the loss may change as it
    likes, for y comes from where it was put. Unless steps diverged on most devices, a
    run steps back five times at most.

    A state is good to return to if its loss is about as small as any before it.

    Args:
        guard: what was known before.
        state: where the round began.
        loss: there.
        warm: whether x moves at its full rate.
        broken: whether the round's steps diverged on most devices.
        doubtful: whether they did on a few.

    Example:
        >>> import jax.numpy as jnp
        >>> one, hundred = jnp.array(1.0), jnp.array(100.0)
        >>> no, yes = jnp.array(False), jnp.array(True)
        >>> sound = {"broken": no, "doubtful": no}
        >>> guard = new_guard(one, 0 * one)
        >>> guard, exploded = judge(guard, one, one, warm=no, **sound)
        >>> bool(exploded)
        False
        >>> guard, exploded = judge(guard, hundred, hundred, warm=yes, **sound)
        >>> bool(exploded), float(guard.good), float(guard.shrinkage)
        (True, 1.0, 0.5)
    """
    loss = jnp.asarray(loss, guard.level.dtype)
    warm = warm & guard.begun
    margin = guard.noise + FLOOR * guard.level
    above = loss - guard.smooth
    jumped = ~(above <= FACTOR * (jnp.abs(guard.smooth) + margin))
    worse = guard.smooth > guard.level + FACTOR * margin
    heeded = guard.setbacks < MOST_SETBACKS
    exploded = broken | (heeded & (doubtful | (warm & (jumped | worse))))
    calm = ~exploded & (~warm | (loss <= guard.lowest + margin))
    good = jax.tree.map(
        lambda old, new: jnp.where(calm, jnp.asarray(new, jnp.result_type(old)), old),
        guard.good,
        state,
    )
    # Before x moves, the latest loss is all that counts: y is still on its way.
    smooth = jnp.where(warm, guard.smooth + SMOOTHING * above, loss)
    # A jump counts as noise too, or devices that differ, sampled, would be taken for
    # explosions for ever; but not all of it, or one explosion would hide the next.
    most = 2 * FACTOR * (jnp.abs(guard.smooth) + margin)
    spread = jnp.where(jnp.isfinite(above), jnp.minimum(jnp.abs(above), most), most)
    noise = guard.noise + SMOOTHING * (spread - guard.noise)
    return Guard(
        good,
        level=jnp.where(
            warm | exploded, guard.level, jnp.maximum(guard.level, jnp.abs(loss))
        ),
        smooth=jnp.where(exploded, guard.lowest, smooth),
        lowest=jnp.where(
            exploded,
            guard.lowest,
            jnp.where(warm, jnp.minimum(guard.lowest, smooth), smooth),
        ),
        noise=jnp.where(warm & ~(broken | (heeded & doubtful)), noise, guard.noise),
        shrinkage=jnp.where(
            exploded,
            0.5 * guard.shrinkage,
            jnp.minimum(1.0, RECOVERY * guard.shrinkage),
        ),
        setbacks=guard.setbacks + jnp.asarray(exploded, guard.setbacks.dtype),
        begun=guard.begun | ~exploded,
    ), exploded
