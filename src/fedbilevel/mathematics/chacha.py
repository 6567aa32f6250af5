"""ChaCha20 as a random generator of JAX, with keys of 256 bits.

JAX's own generator has keys of 64 bits, of which a seed sets 32: they can be searched.
The noise of differential privacy needs numbers that nobody can find by search, nor
predict from others. All functions of `jax.random` accept a key of this generator.
"""

import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as jax_generators
from jaxtyping import Array, Key, UInt, UInt32

CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)
KEY_WORDS = 8
"""Words of 32 bits of a key."""
SECRET_BYTES = 4 * KEY_WORDS
BLOCK_WORDS = 16
"""Words of 32 bits of a block."""
SPLITTING, FOLDING, DRAWING, SEEDING = 1, 2, 3, 4
"""First words of the nonces: no two uses of a key share a block."""


def secret_key(secret: bytes) -> Key[Array, ""]:
    """Return the key of a secret of 32 bytes.

    Example:
        >>> key = secret_key(new_secret())
        >>> jax.random.normal(jax.random.fold_in(key, 3), (2,)).shape
        (2,)
    """
    return key_of_words(np.frombuffer(secret, "<u4").astype(np.uint32))


def key_of_words(words: UInt32[Array | np.ndarray, "*keys 8"]) -> Key[Array, "*keys"]:
    """Return the keys with some words.

    Example:
        >>> words = np.arange(8, dtype=np.uint32)
        >>> jax.random.key_data(key_of_words(words)).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    keys: Key[Array, "*keys"]
    keys = jax.random.wrap_key_data(jnp.asarray(words), impl=CHACHA20)
    return keys


def new_secret() -> bytes:
    """Return 32 bytes of the operating system's source of random numbers.

    Example:
        >>> len(new_secret()), new_secret() == new_secret()
        (32, False)
    """
    return secrets.token_bytes(SECRET_BYTES)


def blocks(
    key: UInt32[Array, "8"], counters: UInt32[Array, "blocks"], nonce: tuple[int, ...]
) -> UInt32[Array, "blocks 16"]:
    """Return blocks of the stream of a key.

    Args:
        key: key.
        counters: numbers of the blocks.
        nonce: up to three words that distinguish streams of one key.

    References:
        Nir and Langley, ChaCha20 and Poly1305 for IETF Protocols, RFC 8439, 2.3.

    Example:
        >>> zeros = jnp.zeros(8, jnp.uint32)
        >>> block = blocks(zeros, jnp.zeros(1, jnp.uint32), (0, 0, 0))
        >>> np.asarray(block[0, :2], "<u4").tobytes().hex()  # appendix A.1, vector 1
        '76b8e0ada0f13d90'
    """
    words = jnp.asarray((*nonce, *(0,) * (3 - len(nonce))), jnp.uint32)
    # Uncompiled, as in DebugSimulation, one key would be 1,000 operations of Python.
    with jax.disable_jit(False):
        stream: UInt32[Array, "blocks 16"]
        stream = _blocks(key, counters.astype(jnp.uint32), words)
    return stream


@jax.jit
def _blocks(
    key: UInt32[Array, "8"],
    counters: UInt32[Array, "blocks"],
    nonce: UInt32[Array, "3"],
) -> UInt32[Array, "blocks 16"]:
    count = counters.shape[0]

    def repeated(vector: Array) -> Array:
        return jnp.broadcast_to(vector[:, None], (len(vector), count))

    start = (
        repeated(jnp.asarray(CONSTANTS)),
        repeated(key[:4]),
        repeated(key[4:]),
        jnp.concatenate([counters[None], repeated(nonce)]),
    )

    def double_round(_: Any, rows: tuple[Array, ...]) -> tuple[Array, ...]:
        a, b, c, d = _quarter_rounds(*rows)
        # The second half works on diagonals: rows are rotated into columns and back.
        rows = _quarter_rounds(a, _rotated(b, 1), _rotated(c, 2), _rotated(d, 3))
        a, b, c, d = rows
        return a, _rotated(b, 3), _rotated(c, 2), _rotated(d, 1)

    # A loop: the 20 rounds in a line would take seconds to compile at each use.
    rows = jax.lax.fori_loop(0, 10, double_round, start)
    stream = [old + new for old, new in zip(start, rows, strict=True)]
    return jnp.concatenate(stream).T


def _quarter_rounds(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, ...]:
    """Return the four rows after a quarter round on each column."""
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _turned(d ^ a, first)
        c = c + d
        b = _turned(b ^ c, second)
    return a, b, c, d


def _turned(word: Array, bits: int) -> Array:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _rotated(row: Array, places: int) -> Array:
    return jnp.concatenate([row[places:], row[:places]])


def _seed(seed: Array) -> UInt32[Array, "8"]:
    """Return the key of an integer: for tests, since integers can be searched."""
    low = seed.astype(jnp.uint32)
    high = (seed >> 32).astype(jnp.uint32) if seed.dtype.itemsize == 8 else low * 0
    zeros = jnp.zeros(KEY_WORDS - 2, jnp.uint32)
    key = jnp.concatenate([low[None], high[None], zeros])
    return blocks(key, jnp.zeros(1, jnp.uint32), (SEEDING,))[0, :KEY_WORDS]


def _split(
    key: UInt32[Array, "8"], shape: tuple[int, ...]
) -> UInt32[Array, "*shape 8"]:
    counters = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32)
    return blocks(key, counters, (SPLITTING,))[:, :KEY_WORDS].reshape(*shape, KEY_WORDS)


def _fold_in(key: UInt32[Array, "8"], number: Any) -> UInt32[Array, "8"]:
    return blocks(key, number[None], (FOLDING,))[0, :KEY_WORDS]


def _random_bits(
    key: UInt32[Array, "8"], bit_width: int, shape: tuple[int, ...]
) -> UInt[Array, "*shape"]:
    """Return random integers of 8, 16, 32 or 64 bits."""
    count = int(np.prod(shape))
    words = -(-count * max(bit_width, 32) // 32)
    counters = jnp.arange(-(-words // BLOCK_WORDS), dtype=jnp.uint32)
    stream = blocks(key, counters, (DRAWING,)).ravel()[:words]
    numbers: UInt[Array, "numbers"] = stream.astype(f"uint{bit_width}")
    if bit_width == 64:
        high, low = numbers.reshape(2, count)
        numbers = (high << np.uint64(32)) | low
    return numbers.reshape(shape)


CHACHA20 = jax_generators.define_prng_impl(
    key_shape=(KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="fedbilevel_chacha20",
    tag="cc20",
)
"""The generator, for the argument `impl` of JAX's functions of keys."""
