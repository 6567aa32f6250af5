"""Error feedback: sums of updates, and descent where it is necessary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel.transforms.compressor import Chain
from fedbilevel.transforms.feedback import Feedback
from fedbilevel.transforms.quantise import Quantise
from fedbilevel.transforms.sparsify import RandomK, TopK

COMPRESSORS = [
    TopK(0.2),
    RandomK(0.2, unbiased=False),
    Quantise(4),
    Chain(TopK(0.2), Quantise(8)),
]


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_decoded_updates_and_the_memory_add_up_to_all_updates(compressor):
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((40, 3, 5)), rng.standard_normal((40, 20))
    memory = tuple(jnp.zeros(leaf.shape[1:]) for leaf in updates)

    @jax.jit
    def step(update, memory, key):
        code, memory = Feedback(compressor).encode(update, memory, key)
        return compressor.decode(code, update), memory

    total = [np.zeros(leaf.shape[1:]) for leaf in updates]
    for number, update in enumerate(zip(*updates, strict=True)):
        decoded, memory = step(update, memory, jax.random.key(number))
        total = [a + np.asarray(b) for a, b in zip(total, decoded, strict=True)]
    for leaf, rest, sent in zip(updates, memory, total, strict=True):
        np.testing.assert_allclose(sent + rest, leaf.sum(axis=0), atol=1e-13)
        assert np.max(np.abs(rest)) > 1e-3


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rounding_errs_less_than_the_update_in_blocks_of_the_documented_size(bits):
    # One entry is the largest level L, which is exact, and the n - 1 others are a part
    # f of a unit, with the variance f (1 - f). It exceeds f² most at f = 1/4.
    level = Quantise(bits).largest_level
    part = np.linspace(0, 1, 1001)

    def ratio(size):
        others = size - 1
        squares = level**2 + others * part**2
        return np.max(others * part * (1 - part) / squares)

    assert ratio(8 * level**2) < 1 < ratio(8 * level**2 + 2)


def descent(with_memory: bool, rounds: int, rate: float = 0.02) -> np.ndarray:
    """Return the distances from the minimiser of the mean of three quadratics.

    Device k has <a_k, x>² + |x|² / 4 with a_1 = (-3, 2, 2) and so on in a circle, as in
    Beznosikov et al. (2020), example 1. At (t, t, t) the largest entry of each gradient
    points away from the minimiser 0.
    """
    vectors = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    compressor = TopK(1 / 3)

    @jax.jit
    @jax.vmap
    def device(gradient, memory):
        code, new = Feedback(compressor).encode(gradient, memory, jax.random.key(0))
        return compressor.decode(code, gradient), new

    x, memory = np.ones(3), np.zeros((3, 3))
    norms = []
    for _ in range(rounds):
        gradients = 2 * (vectors @ x)[:, None] * vectors + x / 2
        sent, new = device(rate * gradients, memory)
        memory = np.asarray(new) if with_memory else memory
        x = x - np.mean(np.asarray(sent), axis=0)
        norms.append(np.linalg.norm(x))
    return np.array(norms)


def test_compressed_descent_needs_the_memory():
    # Each device sends -11 t / 2 of its own entry, so t grows by 1 + 11 rate / 6.
    without = descent(with_memory=False, rounds=100)
    growth = 1 + 11 * 0.02 / 6
    expected = np.sqrt(3) * growth ** np.arange(1, 101)
    np.testing.assert_allclose(without, expected, rtol=1e-10)
    assert descent(with_memory=True, rounds=3000)[-1] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_visible_and_not_remembered(compressor, value):
    update = (jnp.ones(10).at[3].set(value), jnp.ones(2))
    memory = (jnp.full(10, 0.5), jnp.full(2, 0.25))
    encode = jax.jit(Feedback(compressor).encode)
    code, new = encode(update, memory, jax.random.key(0))
    decoded = jax.jit(compressor.decode)(code, update)
    assert not all(np.all(np.isfinite(leaf)) for leaf in decoded)
    for leaf, old in zip(new, memory, strict=True):
        np.testing.assert_array_equal(leaf, old)


@pytest.mark.slow
def test_a_memory_may_be_wider_than_the_update():
    update, memory = jnp.ones(4, jnp.bfloat16), jnp.full(4, 1e-4, jnp.float32)
    code, new = Feedback(TopK(1.0)).encode(update, memory, jax.random.key(0))
    assert code.values.dtype == jnp.bfloat16
    np.testing.assert_allclose(new, memory, rtol=1e-2)  # 1 + 1e-4 rounds to 1


def test_an_empty_update_has_no_memory():
    assert Feedback(TopK(0.5)).encode((), (), jax.random.key(0)) == ((), ())
