"""Random words from a seed of two words, which a device can send."""

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from jaxtyping import Array, UInt32

from fedbilevel.data.examples import RandomKey


def random_seeds(key: RandomKey, count: int) -> UInt32[Array, "seeds 2"]:
    """Return independent seeds. A seed does not reveal the key.

    Example:
        >>> random_seeds(jax.random.key(0), 3).shape
        (3, 2)
    """
    return jax.random.bits(key, (count, 2), jnp.uint32)


def random_words(seed: UInt32[Array, "2"], count: int) -> UInt32[Array, "words"]:
    """Return random words: Threefry in counter mode, as in `jax.random`.

    With JAX's default settings `jax.random.bits` computes two words and returns their
    exclusive or, which takes twice as long. These words are also the same whatever
    generator the key belongs to.

    Example:
        >>> seed = jnp.array([1, 2], jnp.uint32)
        >>> random_words(seed, 5).shape, random_words(seed, 0).shape
        ((5,), (0,))
    """
    if count == 0:
        return jnp.zeros(0, jnp.uint32)
    words: Array = threefry_2x32(seed, jnp.arange(count, dtype=jnp.uint32))
    return words


def random_shorts(seed: UInt32[Array, "2"], count: int) -> UInt32[Array, "numbers"]:
    """Return random numbers from 0 to 65,535, two of each random word.

    Example:
        >>> numbers = random_shorts(jnp.array([1, 2], jnp.uint32), 1000)
        >>> int(numbers.min()) < 1000, 64_000 < int(numbers.max()) < 65_536
        (True, True)
    """
    words = random_words(seed, -(-count // 2))
    return jnp.concatenate([words >> 16, words & 0xFFFF])[:count]
