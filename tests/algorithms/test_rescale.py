"""Rescaled settings against the corollaries, Theorem 3, and runs with more devices."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedbilevel import (
    CubeRootDecay,
    InMemoryDevices,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    run,
    theory,
)
from fedbilevel.algorithms.scaling import rescale, same_steps
from tests import quadratic
from tests.algorithms.table import TwoExchanges

SERIES = NeumannSeries(terms=10, scale=0.15)
SHORT = NeumannSeries(terms=1, scale=0.15)
START = np.zeros(quadratic.X_SIZE), np.zeros(quadratic.Y_SIZE)
BSGM = LocalBSGM(0.02, SERIES, 0.5, 0.7, 4.0, 5.0, local_steps=60, batch_size=3)
BSGVRM = LocalBSGVRM(
    0.02, SERIES, 0.5, 0.7, 4.0, 5.0, local_steps=60, initial_batch_size=50
)


def test_at_the_same_accuracy_corollary_2_is_followed():
    got = rescale(BSGM, devices_from=4, devices_to=12)
    assert got == replace(BSGM, learning_rate=0.02 * 3, local_steps=20)


def test_at_the_same_accuracy_corollary_4_is_followed():
    got = rescale(BSGVRM, devices_from=4, devices_to=12)
    assert got.learning_rate == 0.02 * 3
    assert (got.local_steps, got.initial_batch_size) == (20, 17)
    assert np.isclose(got.upper_mixing, 4 / 3)
    assert np.isclose(got.lower_mixing, 5 / 3)
    unchanged = "hypergradient", "upper_rate", "lower_rate", "batch_size", "warm_start"
    assert all(getattr(got, name) == getattr(BSGVRM, name) for name in unchanged)


def test_at_the_same_steps_corollaries_1_and_3_are_followed():
    got = rescale(BSGM, devices_from=4, devices_to=16, keeping=same_steps)
    assert np.isclose(got.learning_rate, 0.02 * 4**0.5)  # type: ignore[arg-type]
    assert got.local_steps == int(60 / 4**0.75)
    assert got.upper_mixing == 4.0
    reduced = rescale(BSGVRM, devices_from=4, devices_to=32, keeping=same_steps)
    assert np.isclose(reduced.learning_rate, 0.02 * 4)  # type: ignore[arg-type]
    assert (reduced.local_steps, reduced.initial_batch_size) == (15, 13)
    assert reduced.upper_mixing == 0.5


def test_there_and_back_is_the_same():
    for algorithm in (BSGM, replace(BSGVRM, initial_batch_size=48)):
        wide = rescale(algorithm, devices_from=5, devices_to=20)
        back = rescale(wide, devices_from=20, devices_to=5)
        assert back == algorithm


def test_a_decaying_rate_becomes_that_of_theorem_3_for_the_new_numbers():
    assumptions = theory.Assumptions(0.5, 3.0, 2.0, 1.25, 2.0, 1.5)
    few, many = (
        theory.local_bsgvrm_decay(assumptions, SERIES, local_steps=p, devices=k)
        for p, k in ((60, 4), (20, 12))
    )
    tuned = replace(
        BSGVRM,
        learning_rate=few.learning_rate,
        upper_mixing=few.mixing,
        lower_mixing=few.mixing,
    )
    got = rescale(tuned, devices_from=4, devices_to=12)
    assert isinstance(got.learning_rate, CubeRootDecay)
    np.testing.assert_allclose(got.learning_rate.scale, many.learning_rate.scale)
    np.testing.assert_allclose(got.learning_rate.plateau, many.learning_rate.plateau)
    np.testing.assert_allclose(got.upper_mixing, many.mixing)


@pytest.mark.nightly
def test_a_schedule_is_multiplied_and_run_through_faster():
    schedule = optax.exponential_decay(0.1, transition_steps=30, decay_rate=0.5)
    tuned = LocalBSGM(schedule, SHORT, upper_mixing=2.0, local_steps=6)
    wide = rescale(tuned, devices_from=2, devices_to=6)
    by_hand = replace(
        tuned, learning_rate=lambda step: 3 * schedule(3 * step), local_steps=2
    )
    devices = InMemoryDevices(quadratic.devices(2, 5, 0.2))
    problem = quadratic.problem()
    *_, got = run(problem, wide, devices, *START, rounds=3)
    *_, want = run(problem, by_hand, devices, *START, rounds=3)
    np.testing.assert_allclose(got.x, want.x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got.y, want.y, rtol=0, atol=1e-12)
    same = rescale(tuned, devices_from=2, devices_to=8, keeping=same_steps)
    rates: Any = same.learning_rate
    assert np.isclose(rates(12), 2 * schedule(12))


def test_a_schedule_is_capped_where_a_fresh_sample_would_weigh_more_than_all():
    def schedule(step):
        return jnp.where(step == 0, 0.01, 0.2)

    tuned = replace(BSGVRM, learning_rate=schedule, upper_mixing=9.0, lower_mixing=4.0)
    rate: Any = rescale(tuned, devices_from=1, devices_to=9).learning_rate
    assert np.isclose(rate(0), 0.09)
    assert np.isclose(rate(1), 1.0)  # α is now 1, and 9 · 0.2 more than allowed


@pytest.mark.nightly
@pytest.mark.slow
def test_a_grid_of_rates_is_rescaled_under_vmap():
    devices = InMemoryDevices(quadratic.devices(2, 5, 0.2))

    def final_x(rate, mixing):
        tuned = LocalBSGVRM(
            CubeRootDecay(rate), SHORT, upper_mixing=mixing, local_steps=4
        )
        wide = rescale(tuned, devices_from=2, devices_to=4)
        *_, last = run(quadratic.problem(), wide, devices, *START, rounds=2)
        return last.x

    rates, mixings = jnp.array([0.05, 0.1]), jnp.array([1.0, 2.0])
    together = jax.vmap(final_x)(rates, mixings)
    apart = [
        final_x(float(rate), float(mixing))
        for rate, mixing in zip(rates, mixings, strict=True)
    ]
    np.testing.assert_allclose(together, jnp.stack(apart), rtol=0, atol=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", [BSGM, BSGVRM])
def test_more_devices_reach_the_same_accuracy_in_as_many_rounds(algorithm):
    held = quadratic.examples(np.random.default_rng(8), 500, 0.3)
    mean = quadratic.Mean.of([held])

    def average(algorithm, device_count) -> float:
        devices = InMemoryDevices.sharing(held, device_count)
        values = [
            np.sum(mean.hypergradient(np.asarray(result.x)) ** 2)
            + np.sum((np.asarray(result.y) - mean.lower_solution(result.x)) ** 2)
            for seed in range(2)
            for result in run(
                quadratic.problem(), algorithm, devices, *START, rounds=100, seed=seed
            )
        ]
        return float(np.mean(values))

    tuned = replace(
        algorithm,
        hypergradient=NeumannSeries(terms=6, scale=0.2),
        upper_rate=1.0,
        lower_rate=1.0,
        local_steps=20,
        batch_size=1,
    )
    few = average(tuned, 4)
    # With a quarter of the steps, unchanged settings are less accurate.
    short = average(replace(tuned, local_steps=5), 16)
    wide = average(rescale(tuned, devices_from=4, devices_to=16), 16)
    print("RATIOS", few, short / few, wide / few)
    assert short > 2 * few
    assert wide < 1.2 * few


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: rescale(BSGM, devices_from=1, devices_to=61),
            ValueError,
            "local_steps would fall from 60 to 0.984",
        ),
        (
            lambda: rescale(BSGM, devices_from=4, devices_to=50),
            ValueError,
            "lower_mixing · learning_rate would be 1.25",
        ),
        (
            lambda: rescale(
                replace(BSGVRM, learning_rate=CubeRootDecay(0.5), upper_mixing=3.9),
                devices_from=1,
                devices_to=60,
            ),
            ValueError,
            r"upper_mixing · learning_rate\^2 would be",
        ),
        (
            lambda: rescale(BSGM, devices_from=0, devices_to=5),
            ValueError,
            "devices_from is 0, expected at least 1",
        ),
        (
            lambda: rescale(TwoExchanges(0.1), devices_from=1, devices_to=5),
            TypeError,
            "The algorithm is TwoExchanges, but",
        ),
    ],
)
def test_what_cannot_be_rescaled_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
