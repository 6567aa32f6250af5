"""The maximum message size of a federation's processes, from the model's size."""

from typing import Any

import jax
import numpy as np

BASE = 8 * 2**20
"""Bytes for NVIDIA FLARE's own messages, and for the answers of a small model."""
COPIES = 8
"""Arrays of the size of x and y together in one message; algorithms use at most six."""
DEFAULT = 256 * 2**20
"""Default limit of a kit, for models of up to 32 MB."""
SETTING = "streaming_max_blob_size"
"""NVIDIA FLARE's name of the limit in `local/comm_config.json`."""


def message_limit(*arrays: Any) -> int:
    """Return the maximum message size of a model in bytes.

    Args:
        arrays: x and y, each an array or a pytree of arrays.

    Example:
        >>> message_limit(np.zeros(10**6, np.float32), 0.0) // 10**6
        40
    """
    leaves = map(np.asarray, jax.tree.leaves(arrays))
    return BASE + COPIES * sum(leaf.nbytes for leaf in leaves)


def check_limit(needed: int) -> str | None:
    """Return an error text if this process's message limit is too small, else None.

    Args:
        needed: limit that the model needs, in bytes.

    Example:
        >>> check_limit(10**6)
    """
    from nvflare.fuel.f3.comm_config import CommConfigurator

    limit = CommConfigurator().get_streaming_max_blob_size()
    if limit >= needed:
        return None
    return (
        f"its kit accepts messages of up to {limit} bytes, but the model needs "
        f"{needed}; call fedbilevel.flare.prepare(kit, message_limit={needed})"
        " and start it again"
    )
