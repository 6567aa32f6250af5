"""The generator of keys of 256 bits: RFC 8439, and the functions of `jax.random`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from fedbilevel.mathematics import chacha


def test_vector_of_the_standard():
    key = jnp.asarray(np.frombuffer(bytes(range(32)), "<u4").astype(np.uint32))
    nonce = 0x09000000, 0x4A000000, 0
    (block,) = chacha.blocks(key, jnp.array([1], jnp.uint32), nonce)
    # RFC 8439, section 2.3.2
    assert np.asarray(block, "<u4").tobytes().hex().startswith("10f1e7e4d13b5915500fdd")
    assert (
        np.asarray(block, "<u4")
        .tobytes()
        .hex()
        .endswith("b5129cd1de164eb9cbd083e8a2503c4e")
    )


def test_blocks_are_those_of_cryptography():
    secret = np.random.default_rng(0).bytes(32)
    counters = jnp.arange(7, 12, dtype=jnp.uint32)
    key = jax.random.key_data(chacha.secret_key(secret))
    stream = np.asarray(chacha.blocks(key, counters, (3, 4, 5)), "<u4").tobytes()
    nonce = np.array([7, 3, 4, 5], "<u4").tobytes()
    cipher = Cipher(algorithms.ChaCha20(secret, nonce), mode=None)
    assert stream == cipher.encryptor().update(bytes(len(stream)))


def test_uses_of_a_key_have_distinct_blocks():
    key = chacha.secret_key(bytes(32))
    split = jax.random.key_data(jax.random.split(key, 3))
    folded = [jax.random.key_data(jax.random.fold_in(key, n)) for n in range(3)]
    drawn = jax.random.bits(key, (3, 8), jnp.uint32)
    words = np.concatenate([split, np.stack(folded), drawn])
    assert len(np.unique(words)) == words.size


@pytest.mark.slow
def test_numbers_do_not_depend_on_compilation_or_mapping():
    key = chacha.secret_key(bytes(32))

    def numbers(index):
        return jax.random.normal(jax.random.fold_in(key, index), (5,))

    mapped = jax.jit(jax.vmap(numbers))(jnp.arange(3))
    with jax.disable_jit():
        assert np.array_equal(mapped, [numbers(index) for index in range(3)])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits_are_uniform(dtype):
    bits = np.asarray(jax.random.bits(chacha.secret_key(bytes(32)), (20_000,), dtype))
    assert bits.dtype == dtype
    top = np.bincount(bits >> bits.dtype.type(bits.itemsize * 8 - 4), minlength=16)
    assert stats.chisquare(top).pvalue > 1e-3
    low = np.bincount(bits & bits.dtype.type(15), minlength=16)
    assert stats.chisquare(low).pvalue > 1e-3


def test_secrets_are_new():
    assert chacha.new_secret() != chacha.new_secret()
