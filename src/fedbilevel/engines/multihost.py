"""Decisions that all processes of a run must share."""

import jax
import numpy as np


def worst(outcome: int) -> int:
    """Return the largest outcome of all processes.

    Example:
        >>> worst(2)
        2
    """
    return int(_gather(np.array([outcome])).max())


def is_first() -> bool:
    """Return whether this is the first process.

    Example:
        >>> is_first()
        True
    """
    return jax.process_index() == 0


def first(numbers: list[int]) -> list[int]:
    """Return the numbers of the first process.

    Example:
        >>> first([10, 20])
        [10, 20]
    """
    length = int(_gather(np.array([len(numbers)]))[0, 0])
    padded = np.zeros(max(1, length), int)
    padded[: min(length, len(numbers))] = numbers[:length]
    shared: list[int] = _gather(padded)[0, :length].tolist()
    return shared


def same(digest: bytes) -> bool:
    """Return whether all processes have the same digest.

    Example:
        >>> same(b"1234")
        True
    """
    digests = _gather(np.frombuffer(digest, np.uint8))
    return bool((digests == digests[:1]).all())


def _gather(array: np.ndarray) -> np.ndarray:
    if jax.process_count() == 1:
        return array[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array))
