"""Error feedback: what a code omits is added to the next update."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import register
from fedbilevel.transforms.compressor import Compressor


def feedback(
    compressor: Compressor, update: PyTree, memory: PyTree, key: RandomKey
) -> tuple[PyTree, PyTree]:
    """Return the code of an update plus the memory, and the next memory.

    The next memory is the error of the code: e' = u + e − decode(encode(u + e)) (Seide
    et al., 2014; Karimireddy et al., 2019, algorithm 2, with the step length
    in u). So decoded updates and the last memory add up to the sum of all updates, and
    a biased compressor omits nothing for good.

    If the new memory would not be finite, then neither is the update or its decoded
    code, which the server excludes; the memory is unchanged, so that one bad update
    does not spoil all later ones.

    Args:
        compressor: compressor whose error is smaller than the update, such as `TopK`,
            `RandomK(share, unbiased=False)` or `Quantise` with blocks of at most
            8 (largest level)² entries: 392 with 4 bits, 8 with 2 bits. In a longer
            block the expected squared error can exceed ‖u‖².
        update: update u.
        memory: memory e, with the shapes of the update; zeros at first. Its dtype may
            be wider than that of the update.
        key: random key.

    Example:
        >>> from fedbilevel.transforms.sparsify import TopK
        >>> update, memory = jnp.array([3.0, 1.0]), jnp.array([0.0, 0.5])
        >>> code, memory = feedback(TopK(0.5), update, memory, jax.random.key(0))
        >>> code.values, memory
        (Array([3.], dtype=float32), Array([0. , 1.5], dtype=float32))
    """
    total = jax.tree.map(lambda u, e: u.astype(e.dtype) + e, update, memory)
    narrow = jax.tree.map(lambda t, u: t.astype(u.dtype), total, update)
    code = compressor.encode(narrow, key)
    decoded = compressor.decode(code, update)
    error = jax.tree.map(lambda t, d: t - d.astype(t.dtype), total, decoded)
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(error)]
    is_finite = jnp.all(jnp.stack(checks)) if checks else True
    return code, jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), error, memory)


@register
@dataclass(frozen=True)
class Feedback:
    """A code whose error is stored on the device and added to its next update.

    Without feedback, `TopK` would never send small entries. Each device needs memory of
    the size of an update for each phase.

    Attributes:
        code: the code of an update, such as `TopK(0.1)` or `Chain(TopK(0.1),
            Quantise())`. Use `RandomK(share, unbiased=False)`: the error of unbiased
            entries is larger than the update.

    Example:
        >>> from fedbilevel.transforms.sparsify import TopK
        >>> largest = Feedback(TopK(0.5))
        >>> memory = largest.first_memory(jnp.zeros(2))
        >>> sent, memory = largest.encode(
        ...     jnp.array([3.0, 1.0]), memory, jax.random.key(0)
        ... )
        >>> largest.decode(sent, memory), memory
        (Array([3., 0.], dtype=float32), Array([0., 1.], dtype=float32))
    """

    code: Any

    def __post_init__(self) -> None:
        if not isinstance(self.code, Compressor):
            raise TypeError(
                f"Feedback: {self.code!r} has no encode and decode. Pass a code such "
                "as TopK(0.1) or Chain(TopK(0.1), Quantise())."
            )

    def first_memory(self, like: PyTree) -> PyTree:
        """Return the error before the first exchange: zeros."""
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    def encode(
        self, update: PyTree, memory: PyTree, key: RandomKey
    ) -> tuple[PyTree, PyTree]:
        """Return the code of the update with the error, and the next error."""
        return feedback(self.code, update, memory, key)

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return the update of a code."""
        return self.code.decode(code, like)
