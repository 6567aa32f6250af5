"""The mask of a device's contribution: under noise, no number shows if it is finite."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Private
from fedbilevel.mathematics import arrays


class Contribution(NamedTuple):
    """The numbers of a device in a mean, within their bounds and before their noise.

    Attributes:
        change: difference between the update and that of an idle device.
        beside: values beside the update, in the units of `Beside.units`.
        votes: votes of an adaptive clip.
    """

    change: PyTree
    beside: PyTree
    votes: PyTree


def mask_unless_finite(
    contribution: Contribution, private: Private, before: Private, idle: PyTree
) -> tuple[Contribution, Private]:
    """Return zeros and the earlier private state, unless all numbers are finite.

    Under differential privacy, neither the participants nor the amount of noise may
    depend on the data of a device. A device with a number that is not finite would be
    excluded, and with `DeviceNoise` its noise as well. So it contributes zero in
    everything, counts as all others, and works on from the private state that it had.

    An idle update that is not finite is public: the server has sent it, so the run has
    diverged for all devices. Then nothing is masked, and the engine ends the run.

    Args:
        contribution: numbers of the device.
        private: private state of the device after its work.
        before: private state before.
        idle: update of an idle device; () for a phase without updates.

    Example:
        >>> broken = Contribution((jnp.ones(2),), jnp.array(jnp.nan), ())
        >>> before, after = jnp.array(7.0), jnp.array(8.0)
        >>> shown, private = mask_unless_finite(broken, after, before, ())
        >>> shown.change, float(private)
        ((Array([0., 0.], dtype=float32),), 7.0)
    """
    is_finite = arrays.all_finite((contribution, private))
    counts = is_finite | ~arrays.all_finite(idle)
    shown: Contribution = jax.tree.map(
        lambda leaf: jnp.where(counts, leaf, jnp.zeros_like(leaf)), contribution
    )
    if _shapes(private) != _shapes(before):
        return shown, private  # The engine refuses it, with a message.
    state = jax.tree.map(
        lambda new, old: jnp.where(
            is_finite, new, jnp.asarray(old, jnp.result_type(new))
        ),
        private,
        before,
    )
    return shown, state


def _shapes(state: Private) -> object:
    leaves, structure = jax.tree.flatten(state)
    return structure, [jnp.shape(leaf) for leaf in leaves]
