"""Normal numbers from the operating system's source of random numbers."""

import os

import jax
import numpy as np
from jaxtyping import Float, PyTree


def secret_normals(like: PyTree) -> PyTree:
    """Return independent standard normal numbers in the form of a tree.

    They come from the operating system's source, so no seed can repeat them.

    Example:
        >>> first, second = (secret_normals(np.zeros(3)) for _ in range(2))
        >>> first.shape, bool(np.any(first == second))
        ((3,), False)
    """
    return jax.tree.map(
        lambda leaf: _normals(leaf.size).reshape(leaf.shape).astype(leaf.dtype),
        like,
    )


def _normals(count: int) -> Float[np.ndarray, "count"]:
    # Box and Muller's transform; 53 bits fill a double in (0, 1].
    pairs = -(-count // 2)
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 1.0) / 2.0**53
    radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
    angle = 2.0 * np.pi * uniform[pairs:]
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return numbers[:count]
