"""The mask of a device's upload: under noise, no number shows if it is finite."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Private, Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics import arrays
from fedbilevel.transforms.stages import Exchange, Stage, Work


def mask_unless_finite(
    upload: Upload, private: Private, before: Private, idle: PyTree
) -> tuple[Upload, Private]:
    """Return zeros and the earlier private state, unless all numbers are finite.

    Under differential privacy, neither the participants nor the amount of noise may
    depend on the data of a device. A device with a number that is not finite would be
    excluded, and with `DeviceNoise` its noise as well. So it contributes zero in
    everything, counts as all others, and works on from the private state that it had.

    An idle update that is not finite is public: the server has sent it, so the run has
    diverged for all devices. Then nothing is masked, and the engine ends the run.

    Args:
        upload: numbers of the device, within their bounds and before their noise.
        private: private state of the device after its work.
        before: private state before.
        idle: update of an idle device; () for a phase without updates.

    Example:
        >>> broken = Upload((jnp.ones(2),), jnp.array(jnp.nan))
        >>> before, after = jnp.array(7.0), jnp.array(8.0)
        >>> shown, private = mask_unless_finite(broken, after, before, ())
        >>> shown.update, float(private)
        ((Array([0., 0.], dtype=float32),), 7.0)
    """
    is_finite = arrays.all_finite((upload, private))
    counts = is_finite | ~arrays.all_finite(idle)
    shown: Upload = jax.tree.map(
        lambda leaf: jnp.where(counts, leaf, jnp.zeros_like(leaf)), upload
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


def _send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
    upload, private = mask_unless_finite(
        work.upload, work.private, work.before, exchange.idle
    )
    return work._replace(upload=upload, private=private)


MASK = Stage(send=_send)
"""The stage between a clip and noise."""
