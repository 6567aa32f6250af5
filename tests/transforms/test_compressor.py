"""Chains of a sparsifier and a quantiser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel.federation.wire_format import decode, encode, pack, unpack
from fedbilevel.mathematics import tree
from fedbilevel.transforms.compressor import Chain
from fedbilevel.transforms.quantise import Quantise
from fedbilevel.transforms.sparsify import RandomK, TopK

pytestmark = pytest.mark.slow


KEY = jax.random.key(0)


@pytest.mark.nightly
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("first", [TopK(0.1), RandomK(0.1, unbiased=False)])
def test_the_numbers_of_a_sparse_code_are_quantised(first, bits):
    update = (jax.random.normal(KEY, (30, 40), jnp.float32), jnp.ones(7, jnp.float32))
    chain = Chain(first, Quantise(bits, block=16))
    code = jax.jit(chain.encode)(update, KEY)
    decode_chain = jax.jit(chain.decode)
    decoded = decode_chain(code, update)
    sparse = jax.jit(lambda key: first.decode(first.encode(update, key), update))(
        jax.random.split(KEY)[0]
    )
    for leaf, exact in zip(decoded, sparse, strict=True):
        unit = float(jnp.max(jnp.abs(exact))) / Quantise(bits).largest_level
        assert np.max(np.abs(leaf - exact)) <= unit * (1 + 1e-5)
        assert np.all(np.asarray(leaf)[np.asarray(exact) == 0] == 0)
    form = jax.eval_shape(chain.encode, update, KEY)
    received = unpack(decode(encode(pack(code))), form)
    for leaf, other in zip(decode_chain(received, update), decoded, strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_bytes_of_a_chain():
    update = jax.ShapeDtypeStruct((10_000,), jnp.float32)
    sizes = {
        Chain(TopK(0.1), Quantise(8)): 1000 + 4 * 4 + 2000,
        Chain(RandomK(0.1), Quantise(4)): 500 + 4 * 4 + 8,
        Chain(TopK(0.1), Chain(RandomK(0.5), Quantise(8))): 500 + 2 * 4 + 8 + 2000,
    }
    for chain, expected in sizes.items():
        code = jax.eval_shape(chain.encode, update, KEY)
        assert tree.number_of_bytes(code) == expected


def test_a_chain_of_unbiased_compressors_is_unbiased():
    update = jnp.array([1.0, -0.3, 0.7, 0.2])
    chain = Chain(RandomK(0.5), Quantise(2))
    keys = jax.random.split(KEY, 20_000)

    def trip(key):
        return chain.decode(chain.encode(update, key), update)

    decoded = np.asarray(jax.jit(jax.vmap(trip))(keys))
    width = 3.7 * decoded.std(axis=0) / np.sqrt(len(keys))  # 99.9 % for four entries
    assert np.all(np.abs(decoded.mean(axis=0) - update) <= width + 2.0**-16)


@pytest.mark.parametrize("first", [Quantise(), Chain(TopK(0.1), Quantise())])
def test_quantisation_is_last(first):
    with pytest.raises(TypeError, match=r"comes first and sends integers.* Quantise l"):
        Chain(first, TopK(0.5))


def test_a_chain_of_something_else_is_refused():
    with pytest.raises(TypeError, match=r"Chain: 0\.1 has no encode and decode"):
        Chain(0.1, Quantise())
