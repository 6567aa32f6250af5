"""Divergence guard: detect an exploding loss and return to the last good state."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int, PyTree

from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.arrays import Array

FACTOR = 4.0
"""A loss has exploded if it exceeds the moving average by this many times its scale."""
FLOOR = 0.05
"""Fraction of the loss before x moved in that scale: near 0, relative changes of the
loss are meaningless."""
SMOOTHING = 0.1
"""Weight of a new round in the moving average."""

MOST_SETBACKS = 5
"""Largest number of setbacks, except those caused by most devices: a few devices may
report wrong values in every round, and must not stop the run."""
RECOVERY = 1.05
"""Growth of the rates per round after a setback, up to their original values."""


class Guard(NamedTuple):
    """Statistics of the loss, and the last good state.

    Attributes:
        good: last good state.
        level: largest loss before x moved at its full rate.
        smooth: moving average of the loss.
        lowest: smallest value of the moving average.
        noise: moving average of the distance between a loss and its average.
        shrinkage: factor of all rates: 1, halved by a setback, then growing.
        setbacks: number of setbacks.
        begun: True once a round has not diverged, so that a loss is known.
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
    """Return a guard without statistics.

    Args:
        state: initial state of a run.
        zero: 0 in the precision of the loss.
    """
    begun, none = (arrays.constant(value, like=zero) for value in (False, 0))
    return Guard(state, zero, zero, zero, zero, zero + 1, none, begun)


def judge(
    guard: Guard,
    state: PyTree,
    loss: Float[Array, ""],
    *,
    warm: Bool[Array, ""],
    broken: Bool[Array, ""],
    doubtful: Bool[Array, ""],
) -> tuple[Guard, Bool[Array, ""]]:
    """Return the guard after a round, and whether to step back.

    A run steps back for one of three reasons. The round's steps diverged. Its loss
    exceeds the moving average by more than four times the sum of that average, its
    noise, and a twentieth of the level before x moved. Or the moving average exceeds
    that level by four times the sum of its noise and a twentieth of the level: the run
    is worse than with x fixed. Before x moves at its full rate the loss is not checked,
    because y is still moving to y*(x). Unless steps diverged on most devices, a run
    steps back at most five times.

    A state is good if its loss is about as small as that of all states before it.

    Args:
        guard: guard before the round.
        state: state before the round.
        loss: loss at that state.
        warm: True if x moves at its full rate.
        broken: True if the round's steps diverged on most devices.
        doubtful: True if the round's steps diverged on a few devices.

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
    loss = arrays.cast(loss, guard.level)
    warm = warm & guard.begun
    margin = guard.noise + FLOOR * guard.level
    above = loss - guard.smooth
    jump = ~(above <= FACTOR * (arrays.absolute(guard.smooth) + margin))
    worse = guard.smooth > guard.level + FACTOR * margin
    may_step_back = guard.setbacks < MOST_SETBACKS
    exploded = broken | (may_step_back & (doubtful | (warm & (jump | worse))))
    calm = ~exploded & (~warm | (loss <= guard.lowest + margin))
    good = arrays.select(calm, state, guard.good)
    # Before x moves, the average is the latest loss, because y is still moving.
    smooth = arrays.where(warm, guard.smooth + SMOOTHING * above, loss)
    # A jump counts as noise as well: otherwise samples of heterogeneous devices would
    # count as explosions in every round. It is capped: otherwise one explosion would
    # hide the next.
    most = 2 * FACTOR * (arrays.absolute(guard.smooth) + margin)
    spread = arrays.where(
        arrays.isfinite(above), arrays.minimum(arrays.absolute(above), most), most
    )
    noise = guard.noise + SMOOTHING * (spread - guard.noise)
    return Guard(
        good,
        level=arrays.where(
            warm | exploded,
            guard.level,
            arrays.maximum(guard.level, arrays.absolute(loss)),
        ),
        smooth=arrays.where(exploded, guard.lowest, smooth),
        lowest=arrays.where(
            exploded,
            guard.lowest,
            arrays.where(warm, arrays.minimum(guard.lowest, smooth), smooth),
        ),
        noise=arrays.where(
            warm & ~(broken | (may_step_back & doubtful)), noise, guard.noise
        ),
        shrinkage=arrays.where(
            exploded,
            0.5 * guard.shrinkage,
            arrays.minimum(1.0, RECOVERY * guard.shrinkage),
        ),
        setbacks=guard.setbacks + arrays.cast(exploded, guard.setbacks),
        begun=guard.begun | ~exploded,
    ), exploded
