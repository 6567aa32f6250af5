"""Top-k against a sort, random-k against closed forms of its moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from fedbilevel.federation.wire_format import decode, encode, pack, unpack
from fedbilevel.mathematics import tree
from fedbilevel.transforms.sparsify import RandomK, Sparse, TopK, random_positions

KEY = jax.random.key(0)
DTYPES = ["float32", "float64", "bfloat16", "float16"]


@jax.jit
def round_trip(compressor, update, key=KEY):
    return compressor.decode(compressor.encode(update, key), update)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(8))
def test_the_largest_entries_are_sent(case):
    rng = np.random.default_rng(case)
    shape = tuple(rng.integers(1, 8, rng.integers(0, 4)))
    values = rng.permutation(np.arange(1.0, 1 + np.prod(shape))).reshape(shape)
    update = jnp.asarray(values * rng.choice([-1, 1], shape), DTYPES[case % 4])
    share = float(rng.uniform(0.05, 1))
    decoded = round_trip(TopK(share), {"a": update})["a"]
    expected = np.array(update).reshape(-1)
    count = int(np.ceil(share * expected.size))
    expected[np.argsort(np.abs(expected))[: expected.size - count]] = 0
    np.testing.assert_array_equal(decoded, expected.reshape(shape))
    assert decoded.dtype == update.dtype


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_the_error_of_top_k_is_at_most_that_of_random_entries(share):
    for seed in range(20):
        update = jax.random.normal(jax.random.key(seed), (40,), jnp.float64)
        error = jnp.sum((round_trip(TopK(share), update) - update) ** 2)
        assert error <= (1 - share) * jnp.sum(update**2) * (1 + 1e-12)
    signs = jnp.where(jnp.arange(40) % 3 == 0, -2.0, 2.0)
    error = jnp.sum((round_trip(TopK(share), signs) - signs) ** 2)
    assert float(error) == pytest.approx((1 - share) * 160, rel=1e-12)


@pytest.mark.parametrize("size", [2**16, 2**16 + 1])
def test_positions_take_the_smallest_type_that_represents_them(size):
    update = jnp.zeros(size).at[size - 1].set(3.0)
    code = jax.jit(TopK(1e-9).encode)(update, KEY)
    assert code.indices.dtype == ("uint16" if size == 2**16 else "uint32")
    np.testing.assert_array_equal(code.indices, [size - 1])
    np.testing.assert_array_equal(round_trip(TopK(1e-9), update), update)


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [TopK(0.1), RandomK(0.1), RandomK(0.1, False)])
def test_what_is_not_finite_stays_so(compressor):
    values = np.array([[np.nan], [-np.nan], [np.inf], [-np.inf]])
    rows = np.where(np.arange(30) == 17, values, 1e4)
    update = {dtype: jnp.asarray(rows, dtype) for dtype in DTYPES}
    decoded = jax.vmap(round_trip, (None, 0))(compressor, update)
    for leaf in decoded.values():
        finite = np.isfinite(np.asarray(leaf, np.float64))
        assert not np.any(np.all(finite, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [TopK(0.3), RandomK(0.3), RandomK(0.3, False)])
def test_empty_scalar_huge_and_tiny_arrays_pass(compressor):
    update = {
        "empty": jnp.zeros((3, 0)),
        "scalar": jnp.array(2.0, jnp.bfloat16),
        "huge": jnp.full(4, 1e38, jnp.float32),
        "tiny": jnp.full(4, 2e-38, jnp.float32),
        "zeros": jnp.zeros((2, 2), jnp.float16),
    }
    decoded = round_trip(compressor, update)
    assert tree.forms(decoded) == tree.forms(update)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(decoded))
    assert float(decoded["scalar"]) == 2
    assert np.count_nonzero(np.asarray(decoded["huge"])) == 2
    assert compressor.encode((), KEY) is not None
    assert jax.jit(compressor.decode)(compressor.encode((), KEY), ()) == ()


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [TopK(1.0), RandomK(1.0), RandomK(1.0, False)])
def test_a_share_of_1_sends_everything(compressor):
    update = jax.random.normal(KEY, (5, 7))
    np.testing.assert_array_equal(round_trip(compressor, update), update)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(1, 7), (3, 7), (5, 7), (7, 7), (4, 12)])
def test_random_positions_are_distinct_and_equally_likely(count, size):
    draws = 20_000
    seeds = jax.random.bits(jax.random.key(2), (draws, 2), jnp.uint32)
    draw = jax.jit(jax.vmap(lambda seed: random_positions(seed, count, size)))
    positions = np.sort(draw(seeds), axis=1)
    assert np.all(positions < size)
    assert np.all(np.diff(positions, axis=1) > 0)
    share = count / size
    frequency = np.bincount(positions.reshape(-1), minlength=size) / draws
    width = norm.ppf(1 - 0.0005 / size) * np.sqrt(share * (1 - share) / draws)
    assert np.max(np.abs(frequency - share)) <= width


@pytest.mark.parametrize("unbiased", [True, False])
def test_random_entries_have_the_moments_of_the_closed_form(unbiased):
    rng = np.random.default_rng(5)
    update = rng.standard_normal(17)
    compressor, draws = RandomK(5 / 17, unbiased), 20_000
    keys = jax.random.split(jax.random.key(3), draws)
    trip = jax.jit(
        jax.vmap(lambda key: round_trip(compressor, jnp.asarray(update), key))
    )
    decoded = np.asarray(trip(keys))
    share = 5 / 17
    factor = 1 / share if unbiased else 1.0
    width = norm.ppf(1 - 0.0005 / 18) / np.sqrt(draws)
    spread = factor * np.abs(update) * np.sqrt(share * (1 - share))
    assert np.all(np.abs(decoded.mean(0) - factor * share * update) <= width * spread)
    errors = np.sum((decoded - update) ** 2, axis=1)
    expected = (1 / share - 1 if unbiased else 1 - share) * np.sum(update**2)
    assert abs(errors.mean() - expected) <= width * errors.std()


@pytest.mark.slow
def test_a_seed_replaces_the_positions():
    update = (jnp.arange(1.0, 1001.0), jnp.ones((10, 10)))
    compressor = RandomK(0.1, unbiased=False)
    code = jax.jit(compressor.encode)(update, KEY)
    assert code.seeds.dtype == jnp.uint32
    assert tree.number_of_bytes(code) == 8 * (100 + 10) + 2 * 8
    decoded = jax.jit(compressor.decode)(code, update)
    sent = np.flatnonzero(decoded[0])
    np.testing.assert_array_equal(decoded[0][sent], update[0][sent])
    assert len(sent) == 100
    assert not np.array_equal(code.seeds[0], code.seeds[1])


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [TopK(0.2), RandomK(0.2)])
def test_devices_are_mapped_and_codes_pass_the_wire(compressor):
    updates = jax.random.normal(KEY, (3, 6, 5), jnp.float32)
    keys = jax.random.split(KEY, 3)
    like = jax.ShapeDtypeStruct((6, 5), jnp.float32)
    codes = jax.jit(jax.vmap(compressor.encode))(updates, keys)

    @jax.jit
    def restore(code):
        return compressor.decode(code, like)

    decoded = jax.jit(jax.vmap(restore))(codes)
    encode_one = jax.jit(compressor.encode)
    form = jax.eval_shape(compressor.encode, like, KEY)
    for device in range(3):
        code = encode_one(updates[device], keys[device])
        received = unpack(decode(encode(pack(code))), form)
        np.testing.assert_array_equal(decoded[device], restore(received))


def test_positions_outside_of_an_array_are_dropped():
    code = Sparse(jnp.ones(3), jnp.array([1, 9, 65_535], jnp.uint16))
    decoded = TopK(0.5).decode(code, jax.ShapeDtypeStruct((6,), jnp.float64))
    np.testing.assert_array_equal(decoded, [0, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("kind", [TopK, RandomK])
@pytest.mark.parametrize("share", [0.0, 1.5, -0.1, np.nan])
def test_a_share_is_above_0_and_at_most_1(kind, share):
    with pytest.raises(ValueError, match=f"{kind.__name__}: share is {share}"):
        kind(share)


@pytest.mark.parametrize("compressor", [TopK(0.5), RandomK(0.5)])
def test_integers_are_refused(compressor):
    with pytest.raises(TypeError, match="an array has dtype int32, expected"):
        compressor.encode((jnp.ones(2, jnp.int32),), KEY)
