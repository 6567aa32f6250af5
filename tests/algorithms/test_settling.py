"""The verdict that y has not settled, on quadratics whose conditions are known."""

import logging
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    AutoFedBiO,
    BilevelProblem,
    Clip,
    InMemoryDevices,
    LocalExamples,
    run,
    with_transforms,
)
from fedbilevel.algorithms.settling import FEWEST_ROUNDS, new_settling, observe

pytestmark = pytest.mark.slow

ROUNDS, SIZE = 300, 20
CONDITIONS = {1.0: 0, 1e1: 0, 1e2: 0, 1e4: 1, 1e6: 1, 1e8: 1}


@partial(jax.jit, static_argnames=("rounds",))
def verdict(root, start, noise, drift, key, *, rounds=ROUNDS):
    """Return the verdict on noisy gradient steps with the decay of AutoFedBiO."""

    def step(carry, done):
        y, velocity, settling = carry
        progress = done / rounds
        decay = 0.05 + 0.95 * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        # The solution moves as fast as x, whose rate is (1 + cos π progress) / 2.
        target = 1.0 + drift * (progress + jnp.sin(jnp.pi * progress) / jnp.pi)
        # Gradients of a regression have the noise of the residuals times the features.
        normals = jax.random.normal(jax.random.fold_in(key, done), y.shape)
        shock = noise * (root @ normals)
        move = -25 * decay * (root @ (root.T @ (y - target)) + shock)
        # The server's momentum, which is reset when a step reverses.
        velocity = move + jnp.where(move @ velocity > 0, 0.9, 0.0) * velocity
        y = y + velocity
        settling = observe(settling, y, 0 * y, rate=decay, done=done, rounds=rounds)
        return (y, velocity, settling), None

    first = start, 0 * start, new_settling(start, 0 * start)
    (*_, settling), _ = jax.lax.scan(step, first, jnp.arange(1, rounds + 1))
    return settling.unsettled


def root_of(condition, rotated):
    """Return a root of a Hessian with the largest curvature 0.04."""
    values = 0.2 * np.logspace(0, -0.5 * np.log10(condition), SIZE)
    axes = np.eye(SIZE)
    if rotated:
        axes, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))
    return jnp.asarray(axes * values)


@pytest.mark.parametrize("drift", [0.0, 1.0])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(
    ("condition", "noise"),
    # At 1e8 the moves are so slow that this noise can hide them.
    [(condition, 0.0) for condition in CONDITIONS]
    + [(condition, 1e-4) for condition in CONDITIONS if condition < 1e8],
)
def test_the_verdict_is_that_of_the_condition_number(condition, rotated, noise, drift):
    root, zero = root_of(condition, rotated), jnp.zeros(SIZE)
    for seed in range(3):
        actual = verdict(root, zero, noise, drift, jax.random.key(seed))
        assert int(actual) == CONDITIONS[condition]


def test_noise_alone_is_never_steady():
    root, zero = root_of(10.0, rotated=False), jnp.zeros(SIZE)
    keys = jax.random.split(jax.random.key(1), 200)
    verdicts = jax.vmap(lambda key: verdict(root, zero + 1.0, 0.1, 0.0, key))(keys)
    assert int(verdicts.sum()) == 0


def test_a_short_run_is_not_judged():
    root, zero = root_of(1e6, rotated=False), jnp.zeros(SIZE)
    inputs = root, zero, 0.0, 0.0, jax.random.key(0)
    assert int(verdict(*inputs, rounds=FEWEST_ROUNDS - 1)) == 0
    assert int(verdict(*inputs, rounds=FEWEST_ROUNDS)) == 1


def regression(largest):
    """Return ridge regression on features of scales from 1 to `largest`."""
    generator = np.random.default_rng(0)
    scales = np.logspace(0, np.log10(largest), 5)

    def rows(count):
        features = generator.normal(size=(count, 5))
        values = features.sum(axis=1) + generator.normal(size=count)
        return features * scales, values

    def error(y, batch):
        return jnp.mean((batch[0] @ y - batch[1]) ** 2)

    problem = BilevelProblem(
        lambda x, y, batch: error(y, batch),
        lambda x, y, batch: error(y, batch) + jnp.exp(x) * jnp.sum(y**2),
    )
    held = [LocalExamples(upper=rows(20), lower=rows(20)) for _ in range(4)]
    return problem, InMemoryDevices(held), jnp.array(0.0), jnp.zeros(5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("largest", "expected", "transforms"),
    [(1.0, 0, ()), (1e4, 1, ()), (1e4, 1, (Clip(1e3),))],
)
def test_features_of_other_scales_are_reported_at_the_end(
    largest, expected, transforms, caplog
):
    problem, *inputs = regression(largest)
    algorithm: Any = AutoFedBiO(120)
    if transforms:
        algorithm = with_transforms(algorithm, *transforms)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        for _ in run(problem, algorithm, *inputs, rounds=120, every=120):
            pass
    messages = [text for text in caplog.messages if "has not been solved" in text]
    assert len(messages) == expected
    assert all(text.startswith("Round 119: ") for text in messages)
    assert all("Standardise the features" in text for text in messages)
