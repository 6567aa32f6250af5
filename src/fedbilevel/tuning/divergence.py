"""Detection of divergence by the losses: a bounded score does not show it."""

from collections.abc import Callable
from math import isfinite

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import Weighting, Weights, level_weights
from fedbilevel.mathematics.problem import BilevelProblem, Loss, Lower, Upper
from fedbilevel.metrics.full_data import FullData, full_data, full_data_problem

GROWTH = 1000.0
"""A loss has diverged if its absolute value exceeds its reference by this factor."""
EXAMPLES = 4096
"""The most examples of each level that are evaluated."""
DEVICES = 64
"""The most devices that are evaluated: all of them may not fit into memory."""


def has_grown(before: float, after: float) -> bool:
    """Return whether a loss has diverged: its absolute value has grown 1000-fold.

    A loss of 0 before gives no scale for a comparison.

    Example:
        >>> has_grown(2.0, 5e33), has_grown(2.0, 3.0), has_grown(-5.0, -9e9)
        (True, False, False)
    """
    return after > before and abs(after) > GROWTH * abs(before) > 0


def divergence_check(
    problem: BilevelProblem,
    devices: Devices,
    x: Upper,
    y: Lower,
    weights: Weighting = None,
) -> Callable[[Upper, Lower], bool]:
    """Return a function of the last x and y that detects whether a run has diverged.

    A run has diverged if one of its losses is not finite at the end, or more than 1000
    times its reference. The reference of the lower loss is its larger absolute value at
    the first y and at y = 0, both with the last x: a y that is a thousand times worse
    than an untrained y does not follow the lower problem, and an x that scales the
    lower loss has no effect. The reference of the upper loss is the same with the first
    x. Two points are used, since a run may start at a loss of 0.

    Args:
        problem: the two losses.
        devices: data of all devices; up to 4096 examples of each level, of up to 64
            devices, are evaluated.
        x: initial upper variable.
        y: initial lower variable.
        weights: weights of the devices, as for `run`.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import InMemoryDevices, LocalExamples
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean(jnp.tanh(y * batch)),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> rows = LocalExamples(np.ones(1), np.ones(1))
        >>> devices = InMemoryDevices.sharing(rows, 2)
        >>> diverged = divergence_check(problem, devices, 3.0, 3.0)
        >>> diverged(1.0, 1.5), diverged(1.0, -1e19)
        (False, True)
    """
    levels = level_weights(devices, weights)
    shares = Weights(_select_devices(levels.upper), _select_devices(levels.lower))
    upper, lower = map(_select_examples, full_data(devices, shares, EXAMPLES))
    full = full_data_problem(problem)
    losses = jax.jit(
        lambda last_x, last_y: (
            full.upper_loss(last_x, last_y, upper),
            _reference(full.upper_loss, x, y, upper),
            full.lower_loss(last_x, last_y, lower),
            _reference(full.lower_loss, last_x, y, lower),
        )
    )

    def diverged(last_x: Upper, last_y: Lower, /) -> bool:
        upper_end, upper_before, lower_end, lower_before = map(
            float, losses(last_x, last_y)
        )
        return (
            not (isfinite(upper_end) and isfinite(lower_end))
            or has_grown(upper_before, upper_end)
            or has_grown(lower_before, lower_end)
        )

    return diverged


def _reference(loss: Loss, x: Upper, y: Lower, data: FullData) -> Float[Array, ""]:
    zero = jax.tree.map(jnp.zeros_like, y)
    sizes = jnp.stack([jnp.abs(loss(x, point, data)) for point in (y, zero)])
    # A loss need not be defined at y = 0.
    return jnp.max(jnp.where(jnp.isfinite(sizes), sizes, 0))


def _select_devices(
    weights: Float[np.ndarray, "devices"],
) -> Float[np.ndarray, "devices"]:
    """Return the weights of evenly spaced devices, and 0 for all others."""
    present = np.flatnonzero(weights)
    devices = present[_spaced(len(present), DEVICES)]
    return np.where(np.isin(np.arange(len(weights)), devices), weights, 0)


def _spaced(count: int, most: int) -> Int[np.ndarray, "indices"]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _select_examples(data: FullData) -> FullData:
    """Return one block of evenly spaced examples."""
    count = data.shares.size
    indices = _spaced(count, EXAMPLES)

    def arrange(leaf: Array) -> Array:
        return leaf.reshape(count, *leaf.shape[2:])[indices][None]

    shares = arrange(data.shares)
    return FullData(jax.tree.map(arrange, data.rows), shares / jnp.sum(shares))
