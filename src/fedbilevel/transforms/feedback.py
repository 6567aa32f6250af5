"""Error feedback: what a code omits is added to the next update."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics.settings import register
from fedbilevel.transforms.compressor import Compressor
from fedbilevel.transforms.stages import Exchange, Stage, Work


@register
@dataclass(frozen=True)
class Feedback:
    """A code whose error is stored on the device and added to its next update.

    Without feedback, `TopK` would never send small entries. Each device needs memory of
    the size of an update for each phase.

    Attributes:
        code: the code of an update, such as `TopK(0.1)` or `Chain(TopK(0.1),
            Quantise())`, whose error is smaller than the update: use `RandomK(share,
            unbiased=False)`, and `Quantise` with blocks of at most 8 (largest level)²
            entries: 392 with 4 bits, 8 with 2 bits. In a longer block the expected
            squared error can exceed ‖u‖².

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
        """Return the code of an update plus the memory, and the next memory.

        The next memory is the error of the code: e' = u + e − decode(encode(u + e))
        (Seide et al., 2014; Karimireddy et al., 2019, algorithm 2, with the step length
        in u). So decoded updates and the last memory add up to the sum of all updates,
        and a biased code omits nothing for good.

        If the new memory would not be finite, then neither is the update or its decoded
        code, which the server excludes; the memory is unchanged, so that one bad update
        does not spoil all later ones.

        Args:
            update: update u.
            memory: memory e, with the shapes of the update; zeros at first. Its dtype
                may be wider than that of the update.
            key: random key.
        """
        total = jax.tree.map(lambda u, e: u.astype(e.dtype) + e, update, memory)
        narrow = jax.tree.map(lambda t, u: t.astype(u.dtype), total, update)
        code = self.code.encode(narrow, key)
        decoded = self.code.decode(code, update)
        error = jax.tree.map(lambda t, d: t - d.astype(t.dtype), total, decoded)
        checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(error)]
        finite = jnp.all(jnp.stack(checks)) if checks else True
        return code, jax.tree.map(lambda a, b: jnp.where(finite, a, b), error, memory)

    def decode(self, code: PyTree, like: PyTree) -> PyTree:
        """Return the update of a code."""
        return self.code.decode(code, like)


def code_stage(code: Any) -> Stage:
    """Return the stage of a code; with `Feedback` devices store its errors."""

    def send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
        if not exchange.idle:
            return work
        change, key = work.upload.update, jax.random.fold_in(key, 0)
        memories = work.memories
        if isinstance(code, Feedback):
            memory = memories[exchange.name]
            change, memory = code.encode(change, memory, key)
            memories = {**memories, exchange.name: memory}
        else:
            change = code.encode(change, key)
        return work._replace(
            upload=work.upload._replace(update=change), memories=memories
        )

    def receive(upload: Upload, exchange: Exchange) -> Upload:
        if not exchange.idle:
            return upload
        return upload._replace(update=code.decode(upload.update, exchange.form))

    return Stage(send, receive)
