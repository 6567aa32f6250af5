"""The largest message that a process of a federation takes, from the model's size."""

from typing import Any

import jax
import numpy as np

BASE = 8 * 2**20
"""Bytes for what the software sends of its own, and for a small model's answers."""
COPIES = 8
"""Arrays as large as x and y together that one message may hold; the most are six."""
DEFAULT = 256 * 2**20
"""The limit of a kit whose model is not known yet: models of up to 32 MB."""
SETTING = "streaming_max_blob_size"
"""What NVIDIA FLARE calls it, in `local/comm_config.json`."""


def message_limit(*arrays: Any) -> int:
    """Return the bytes that a message of a model may have.

    Args:
        arrays: x and y, each an array or a pytree of arrays.

    Example:
        >>> message_limit(np.zeros(10**6, np.float32), 0.0) // 10**6
        40
    """
    leaves = map(np.asarray, jax.tree.leaves(arrays))
    return BASE + COPIES * sum(leaf.nbytes for leaf in leaves)


def too_small(needed: int) -> str | None:
    """Return what to do if this process takes smaller messages than are needed.

    Args:
        needed: the limit that the model asks for, in bytes.

    Example:
        >>> too_small(10**6)
    """
    from nvflare.fuel.f3.comm_config import CommConfigurator

    limit = CommConfigurator().get_streaming_max_blob_size()
    if limit >= needed:
        return None
    return (
        f"its kit takes messages of up to {limit} bytes, but the model asks for "
        f"{needed}; call fedbilevel.flare.prepare(kit, message_limit={needed})"
        " and start it again"
    )
