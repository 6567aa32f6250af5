"""Quantisation against closed forms and a plain NumPy decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from fedbilevel.federation.wire_format import decode, encode, pack, unpack
from fedbilevel.mathematics import tree
from fedbilevel.transforms.quantise import Quantise
from fedbilevel.transforms.random_words import random_shorts, random_words

KEY = jax.random.key(0)
LEVELS = {16: 32_767, 8: 127, 4: 7, 2: 1}
DTYPES = ["float32", "float64", "bfloat16", "float16"]
DRAWS = 20_000
SMALLEST = {16: 3.86e-34, 8: 1.51e-36, 4: 1.51e-36, 2: 1.51e-36}
"""128 times the smallest normal number of single precision; 32,768 times with 16."""


def quantile(tests: int) -> float:
    """Return the half width in standard deviations of joint 99.9 % intervals."""
    return float(norm.ppf(1 - 0.0005 / tests))


@jax.jit
def round_trip(quantise, update, seed):
    return quantise.decode(quantise.encode(update, jax.random.key(seed)), update)


def round_trips(quantise, update, count=DRAWS):
    keys = jax.random.split(jax.random.key(1), count)

    def trip(key):
        return quantise.decode(quantise.encode(update, key), update)

    return np.asarray(jax.jit(jax.vmap(trip))(keys))


def numpy_levels(quantise, code, size):
    """Return levels by bit strings: a second transcription of the layout."""
    levels = np.asarray(code.levels)
    if quantise.bits >= 8:
        return levels
    texts = [f"{byte:08b}" for byte in levels]
    sections = [
        [int(text[8 - end : 8 - end + quantise.bits], 2) for text in texts]
        for end in range(quantise.bits, 9, quantise.bits)
    ]
    return np.concatenate(sections)[:size] - LEVELS[quantise.bits]


@pytest.mark.slow
@pytest.mark.parametrize("bits", LEVELS)
def test_the_mean_and_the_variance_are_those_of_stochastic_rounding(bits):
    rng = np.random.default_rng(bits)
    update = rng.uniform(-1, 1, 12) * np.repeat([1.0, 100.0, 1e-6], 4)
    update[5] = 0.0
    errors = round_trips(Quantise(bits, block=4), jnp.asarray(update)) - update
    unit = np.repeat(np.abs(update).reshape(3, 4).max(axis=1), 4) / LEVELS[bits]
    part = update / unit - np.floor(update / unit)
    # An error is (1 - part) units with probability part, otherwise -part units.
    variance = unit**2 * part * (1 - part)
    width = quantile(len(update)) / np.sqrt(DRAWS)
    bias = unit * 2.0**-17
    assert np.all(np.abs(errors.mean(0)) <= width * np.sqrt(variance) + bias)
    spread = np.sqrt(variance) * unit * np.abs(1 - 2 * part)
    squares = np.mean(errors**2, axis=0)
    slack = 2 * unit * bias
    assert np.all(np.abs(squares - variance) <= width * spread + slack)
    assert np.all(variance <= unit**2 / 4)


@pytest.mark.slow
def test_errors_of_entries_and_devices_are_independent():
    # Each word rounds an entry of the first half and one of the second half.
    update = jnp.full((2, 64), 0.5 / 127).at[:, 0].set(1.0)
    errors = round_trips(Quantise(), update, 4000)[:, :, 1:] - 0.5 / 127
    signs = np.sign(errors).reshape(4000, -1)
    correlation = signs.T @ signs / 4000
    others = correlation[~np.eye(len(correlation), dtype=bool)]
    assert np.max(np.abs(others)) <= quantile(others.size // 2) / np.sqrt(4000)
    following = np.mean(signs[1:] * signs[:-1], axis=0)
    assert np.max(np.abs(following)) <= quantile(len(following)) / np.sqrt(3999)


def test_dither_is_uniform():
    shorts = np.asarray(random_shorts(jnp.array([3, 4], jnp.uint32), 2**16))
    for half in np.split(shorts, 2):
        for digits in (half >> 8, half & 0xFF):
            counts = np.bincount(digits, minlength=256)
            statistic = np.sum((counts - 128.0) ** 2) / 128
            # A chi-squared variable with 255 degrees of freedom, nearly normal.
            assert abs(statistic - 255) <= quantile(4) * np.sqrt(2 * 255)


def test_words_of_a_seed_are_those_of_jax():
    seed = jnp.array([5, 6], jnp.uint32)
    with jax.threefry_partitionable(False):
        expected = jax.random.bits(jax.random.wrap_key_data(seed), (101,), jnp.uint32)
    np.testing.assert_array_equal(random_words(seed, 101), expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(16))
def test_a_round_trip_errs_by_a_unit_at_most(case):
    rng = np.random.default_rng(case)
    dtype = DTYPES[case % 4]
    quantise = Quantise(list(LEVELS)[case // 4], block=int(rng.integers(1, 40)))
    shape = tuple(rng.integers(0, 7, rng.integers(0, 4)))
    values = jnp.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3))
    update = [values.astype(dtype), jnp.ones(300, dtype)]
    code = jax.jit(quantise.encode)(update, jax.random.key(case))
    like = jax.eval_shape(lambda: update)
    decoded = jax.jit(lambda code: quantise.decode(code, like))(code)
    for leaf, part, result in zip(update, code, decoded, strict=True):
        assert result.shape == leaf.shape
        assert result.dtype == leaf.dtype == part.largest.dtype
        flat = np.asarray(leaf, np.float64).reshape(-1)
        largest = np.asarray(part.largest, np.float64)
        width = max(1, min(quantise.block, flat.size))
        unit = np.repeat(largest, width)[: flat.size] / LEVELS[quantise.bits]
        plain = numpy_levels(quantise, part, flat.size) * unit
        read = np.asarray(result, np.float64).reshape(-1)
        eps = float(jnp.finfo(leaf.dtype).eps)
        np.testing.assert_allclose(read, plain, rtol=2 * eps)
        bound = unit * (1 + 1e-5) + eps * np.abs(plain)
        assert np.all(np.abs(read - flat) <= bound)


@pytest.mark.parametrize("bits", LEVELS)
@pytest.mark.parametrize(
    "largest", [3.4e38, 1e38, 1.0, 1e-30, 2e-36, 2e-38, 1e-38, 0.0]
)
def test_huge_and_tiny_numbers_keep_their_bounds(bits, largest):
    update = np.float32(largest) * np.linspace(-1, 1, 9, dtype=np.float32)
    for draw in range(3):
        decoded = np.asarray(round_trip(Quantise(bits), update, draw), np.float64)
        assert np.all(np.isfinite(decoded))
        unit = float(update[-1]) / LEVELS[bits]
        error = np.abs(decoded - update.astype(np.float64))
        assert np.all(error <= unit * (1 + 1e-5) + 1e-7 * largest + SMALLEST[bits])
        if largest > SMALLEST[bits]:
            np.testing.assert_allclose(decoded[[0, -1]], update[[0, -1]], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("bits", LEVELS)
def test_what_is_not_finite_stays_so(bits):
    rows = [[1.0, -2.0, value, 0.0, 0.0] for value in (np.nan, np.inf, -np.inf)]
    update = {dtype: jnp.array(rows, dtype) for dtype in DTYPES}
    decoded = jax.vmap(round_trip, (None, 0, None))(Quantise(bits, block=4), update, 0)
    for leaf in decoded.values():
        assert not np.any(np.isfinite(np.asarray(leaf, np.float64)[:, :4]))


@pytest.mark.slow
def test_devices_are_mapped_as_one_by_one():
    updates = jax.random.normal(KEY, (3, 1000), jnp.float32)
    keys = jax.random.split(KEY, 3)
    quantise = Quantise(4)
    codes = jax.jit(jax.vmap(quantise.encode))(updates, keys)
    encode_one = jax.jit(quantise.encode)
    for device in range(3):
        alone = encode_one(updates[device], keys[device])
        np.testing.assert_array_equal(codes.levels[device], alone.levels)
        np.testing.assert_array_equal(codes.largest[device], alone.largest)


@pytest.mark.parametrize(
    ("bits", "expected"), [(16, 20_160), (8, 10_160), (4, 5_160), (2, 2_660)]
)
def test_bytes_are_those_of_levels_and_scales(bits, expected):
    update = jax.ShapeDtypeStruct((100, 100), jnp.float32)
    assert tree.number_of_bytes(jax.eval_shape(Quantise(bits).encode, update, KEY)) == (
        expected
    )


@pytest.mark.slow
def test_a_code_passes_the_wire():
    update = (jnp.linspace(-1, 1, 7), {"y": jnp.ones((3, 2)), "z": jnp.zeros(0)})
    quantise = Quantise(4)
    code = jax.jit(quantise.encode)(update, KEY)
    form = jax.eval_shape(quantise.encode, update, KEY)
    received = unpack(decode(encode(pack(code))), form)
    for leaf, expected in zip(
        jax.tree.leaves(quantise.decode(received, update)),
        jax.tree.leaves(quantise.decode(code, update)),
        strict=True,
    ):
        np.testing.assert_array_equal(leaf, expected)


def test_settings_are_structure():
    assert jax.tree.leaves(Quantise(4)) == []
    assert hash(Quantise(4)) != hash(Quantise(8))


@pytest.mark.parametrize("bits", [3, 6, 12, 0])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises(ValueError, match=f"Quantise: bits is {bits}, expected"):
        Quantise(bits)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="Quantise: an array has dtype int8"):
        Quantise().encode((jnp.ones(2, jnp.int8),), KEY)


def test_nothing_is_encoded_to_nothing():
    assert Quantise().encode((), KEY) == ()
