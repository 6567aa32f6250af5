"""Common properties of all algorithms."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    DebugSimulation,
    InMemoryDevices,
    LocalExamples,
    Run,
    UniformSample,
    predict_costs,
    run,
)
from fedbilevel.engines import simulation
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers

ROUNDS = 3
SIZES = (3, 8, 5, 1, 6)  # ragged; programs do not depend on their order
WEIGHTS = np.array([1.0, 0.0, 2.5, 0.5, 1.0])  # uneven, and device 1 is absent

every_algorithm = in_tiers(quick=KINDS[1:2], check=KINDS)


def ragged_devices() -> InMemoryDevices:
    generator = np.random.default_rng(7)
    return InMemoryDevices([quadratic.examples(generator, size, 0.3) for size in SIZES])


def last_server(name, *, problem=None, devices=None, **settings):
    x = jnp.linspace(-1.0, 1.0, quadratic.X_SIZE)
    y = jnp.linspace(1.0, 2.0, quadratic.Y_SIZE)
    *_, last = run(
        problem or quadratic.problem(),
        ALGORITHMS[name](),
        devices or ragged_devices(),
        x,
        y,
        **{"rounds": ROUNDS, "weights": WEIGHTS, **settings},
    )
    assert not np.allclose(last.x, x)
    return last.server


def assert_same(first, other, atol=1e-10):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), first, other
    )


@pytest.mark.nightly
@in_tiers(quick=(), check=KINDS[1:])
def test_jit_equals_no_jit(name):
    # Only two rounds, the opening and a later one, and two devices: without
    # compilation, rounds are slow.
    settings = {"rounds": 2, "weights": [2.5, 0, 0, 0, 1.0]}
    compiled = last_server(name, **settings)
    assert_same(compiled, last_server(name, **settings, engine=DebugSimulation()))


@pytest.mark.slow
@every_algorithm
def test_permuting_devices_changes_nothing(name):
    def permuted(seed, round_number, device_count):
        return np.random.default_rng(round_number).permutation(device_count)

    assert_same(last_server(name), last_server(name, participation=permuted))


@pytest.mark.slow
@every_algorithm
def test_relabelling_devices_changes_nothing(name):
    # Each device has copies of a single example, so draws are deterministic.
    held = [
        jax.tree.map(lambda leaf, size=size: np.repeat(leaf, size, axis=0), device)
        for size, device in zip(SIZES, quadratic.devices(5, 1, 0.3), strict=True)
    ]
    order = [3, 0, 4, 1, 2]
    first = last_server(name, devices=InMemoryDevices(held))
    relabelled = InMemoryDevices([held[k] for k in order])
    other = last_server(name, devices=relabelled, weights=WEIGHTS[order])
    assert_same(first, other)


@every_algorithm
def test_rescaling_weights_changes_nothing(name):
    assert_same(last_server(name), last_server(name, weights=7.3 * WEIGHTS))


@every_algorithm
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name):
    first, same, other = (last_server(name, seed=seed) for seed in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, first, same)
    assert not np.allclose(first.x, other.x, atol=1e-6)


@every_algorithm
def test_an_absent_device_counts_for_nothing_whatever_it_holds(name):
    poisoned = np.random.default_rng(7)
    held = [quadratic.examples(poisoned, size, 0.3) for size in SIZES]
    held[1] = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), held[1])
    assert_same(last_server(name), last_server(name, devices=InMemoryDevices(held)))


@in_tiers(quick=(), check=KINDS[1:])
def test_after_two_rounds_nothing_is_traced_whoever_takes_part_with_what_numbers(name):
    def programs():
        work: Any = simulation._work
        return work._cache_size()

    calls = []

    def lower_loss(x, y, batch):  # a new function, for which no program exists
        calls.append(1)
        return quadratic.lower_loss(x, y, batch)

    def varying(seed, round_number, device_count):
        return np.arange([4, 5, 2, 5, 3, 1][round_number])

    problem = BilevelProblem(quadratic.upper_loss, lower_loss)
    algorithm = ALGORITHMS[name]()
    rest = ragged_devices(), np.ones(quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)
    first, seen = programs(), []
    for _ in run(problem, algorithm, *rest, rounds=6, participation=varying):
        seen.append(len(calls))
    assert seen[0] > 0
    assert seen[1:] == [seen[1]] * 5
    phases = algorithm.phases(problem)
    distinct = len({*algorithm.opening(problem)}) + len({*phases})
    assert 0 < programs() - first <= distinct
    if not getattr(algorithm, "warm_start", None):
        assert programs() - first <= 2 * len(phases)
    before = programs()
    # Numbers are arguments of the compiled program: new values need no new program.
    others = jax.tree.map(lambda rate: 0.5 * rate, algorithm)
    list(run(problem, others, *rest, rounds=2, participation=varying))
    assert programs() == before


@in_tiers(quick=(), check=KINDS[1:])
@pytest.mark.single_precision
def test_dtypes_and_structure_are_kept(name):
    def loss(x, y, batch):
        low, high = y["low"].astype(jnp.float32), y["high"][0]
        pull = x["scale"] * jnp.mean(batch) + x["nested"][0].astype(jnp.float32)
        return jnp.sum((low - pull) ** 2) + jnp.sum((high - 2 * pull) ** 2)

    x = {"scale": jnp.array(1.0), "nested": (jnp.array(0.5, jnp.bfloat16),)}
    y = {"low": jnp.ones(2, jnp.float16), "high": [jnp.zeros(3)]}
    ones = np.ones(4, np.float32)
    devices = InMemoryDevices([LocalExamples(ones, ones)] * 3)
    problem = BilevelProblem(loss, loss)
    algorithm = ALGORITHMS[name]()
    *_, last = run(problem, algorithm, devices, x, y, rounds=2)

    def types(state):
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)

    assert types((last.x, last.y)) == types((x, y))
    assert str(jax.tree.structure(last.x)) == str(jax.tree.structure(x))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(last.server))


@pytest.mark.nightly
@in_tiers(quick=(), check=KINDS[1:])
def test_what_a_run_will_cost_is_known_before(name):
    what = quadratic.problem(), ALGORITHMS[name](), ragged_devices()
    x = jnp.linspace(-1.0, 1.0, quadratic.X_SIZE)
    y = jnp.linspace(1.0, 2.0, quadratic.Y_SIZE)
    *_, last = run(*what, x, y, rounds=ROUNDS, participation=UniformSample(3))
    whole = Run(*what, x, y, rounds=ROUNDS)
    assert predict_costs(whole, participants=3) == last.costs
    sampled = replace(whole, participation=UniformSample(3))
    assert predict_costs(sampled) == last.costs
