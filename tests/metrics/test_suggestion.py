"""Suggested settings against known answers, ill-conditioned ones first."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    FedBiO,
    InMemoryDevices,
    LocalExamples,
    Run,
    Sharded,
    predict_costs,
    run,
    suggest,
)
from tests.algorithms.table import at_night

pytestmark = pytest.mark.slow

START = np.zeros(()), np.zeros(3)
COUNT = 24
"""Number of devices of every federation below, so that all use one program."""
PROBLEM = BilevelProblem(
    # ∇y f = −(1, 1, 1) wherever y is, and H = diag of the batch's mean.
    upper_loss=lambda x, y, batch: jnp.mean(-jnp.sum(y) + 0.0 * batch),
    lower_loss=lambda x, y, batch: 0.5 * jnp.sum(jnp.mean(batch, 0) * y**2) - x * y[0],
)


def devices(*diagonals, dtype=np.float64):
    """Return `COUNT` devices, equally many of each Hessian."""
    held = [np.asarray([item], dtype) for item in diagonals]
    each, rest = divmod(COUNT, len(held))
    assert not rest
    return InMemoryDevices([LocalExamples(item, item) for item in held] * each)


@pytest.mark.parametrize(
    "diagonal", [(1e3, 1.0, 1e-3), (2.0, 1.0, 1.5), (1e-6, 2e-6, 4e-6), (1e9, 1e8, 1e7)]
)
def test_curvature_and_remainders_are_those_of_the_matrix(diagonal):
    actual = suggest(PROBLEM, devices(diagonal), *START, rounds=300)
    largest = max(diagonal)
    # Ten products may miss a little of it; a class of curvature is a twelfth wide.
    assert 0.97 * largest < actual.curvature < 1.1 * largest
    assert actual.lower_rate == actual.adjoint_rate == 1 / actual.curvature
    left = 1 - np.array(diagonal) / actual.curvature
    powers = 2 ** np.arange(7)
    expected = np.linalg.norm(left ** powers[:, None], axis=1) / np.sqrt(3)
    np.testing.assert_allclose(actual.remainders, expected, rtol=1e-9, atol=1e-12)
    close = powers[expected <= 0.1]
    if len(close):
        assert actual.series is not None
        assert actual.series.terms == close[0]
    else:
        assert actual.series is None
        assert "Use an algorithm with an adjoint" in actual.reasons["series"]
    # Along the remainder of 64 terms: a mean of curvatures, not below the smallest.
    assert min(diagonal) * (1 - 1e-9) <= actual.smallest <= largest * (1 + 1e-9)
    assert actual.sharpest <= actual.curvature


def test_the_curvature_is_a_high_quantile_over_devices():
    mild, wild = (1.0, 1.0, 1.0), (100.0, 1.0, 1.0)
    few = suggest(PROBLEM, devices(*[mild] * 23, wild), *START, rounds=200)
    many = suggest(PROBLEM, devices(*[mild] * 5, wild), *START, rounds=200)
    assert 1.0 <= few.curvature < 1.1
    assert 97.0 < many.curvature < 110.0
    light = suggest(
        PROBLEM,
        devices(*[mild] * 5, wild),
        *START,
        rounds=200,
        weights=[*[10.0] * 5, 1.0] * 4,
    )
    assert 1.0 <= light.curvature < 1.1


def test_negative_curvature_is_told():
    actual = suggest(PROBLEM, devices((1.0, 0.5, -0.1)), *START, rounds=200)
    assert actual.series is None
    assert abs(actual.smallest - -0.1) < 1e-3
    assert "-0.1" in str(actual)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("diagonals", "reason"),
    [
        ([(1.0, -1.0, -1.0)], "negative curvature, -1 in a direction"),
        ([(1.0, 1.0, 1.0)] * 3 + [(-1.0, 1.0, 1.0)], "on 25 % of devices (by weight)"),
    ],
)
def test_growing_powers_are_told_and_do_not_overflow(diagonals, reason):
    start = np.zeros((), np.float32), np.zeros(3, np.float32)
    single = devices(*diagonals, dtype=np.float32)
    actual = suggest(PROBLEM, single, *start, rounds=200)
    assert actual.series is None
    assert reason in actual.reasons["series"]
    assert 1 < actual.remainders[-1] <= 1e30


@pytest.mark.nightly
@pytest.mark.parametrize("factor", [4.5, *at_night(100.0)])
def test_rates_are_stable_on_a_device_that_is_far_sharper(factor):
    held = devices(*[(1.0, 1.0, 1.0)] * 23, (factor, factor, factor))
    actual = suggest(PROBLEM, held, *START, rounds=100)
    assert actual.curvature < 1.1
    assert factor <= actual.sharpest < 1.1 * factor
    assert actual.lower_rate == actual.adjoint_rate == 1 / actual.sharpest
    assert (
        f"curvature of a device, {actual.sharpest:.3g}." in actual.reasons["lower_rate"]
    )
    algorithm = FedBiO(
        1.0,
        upper_rate=0.0,
        lower_rate=actual.lower_rate,
        adjoint_rate=actual.adjoint_rate,
        local_steps=5,
    )
    *_, last = run(PROBLEM, algorithm, held, *START, rounds=60)
    assert last.exclusions.excluded == 0
    assert np.linalg.norm(last.y) < 1e-6


def dense(*matrices):
    """Return devices whose lower loss is ½ yᵀHy, each with another Hessian H."""
    held = [np.asarray([item]) for item in matrices]
    return InMemoryDevices([LocalExamples(item, item) for item in held])


DENSE = BilevelProblem(
    upper_loss=lambda x, y, batch: -jnp.sum(y) + 0.0 * jnp.sum(jnp.mean(batch, 0)),
    lower_loss=lambda x, y, batch: 0.5 * y @ jnp.mean(batch, 0) @ y - x * y[0],
)


@pytest.mark.nightly
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e6])
@pytest.mark.parametrize("alike", [True, False])
def test_the_smallest_curvature_is_bounded_by_that_of_the_mean_hessian(
    condition, alike
):
    generator = np.random.default_rng(0)
    hessians = []
    for number in range(4):
        if number == 0 or not alike:
            basis, _ = np.linalg.qr(generator.normal(size=(3, 3)))
        spectrum = np.geomspace(2.0 / condition, 2.0, 3)
        hessians.append(basis @ np.diag(spectrum) @ basis.T)
    actual = suggest(DENSE, dense(*hessians), *START, rounds=200)
    least, *_, most = np.linalg.eigvalsh(np.mean(hessians, 0))
    assert least * (1 - 1e-9) <= actual.smallest <= most * (1 + 1e-9)
    # After 64 terms, directions of more than a tenth of the curvature have vanished.
    if condition <= 1e2 and alike:
        assert actual.smallest < 1.01 * least


def test_the_smallest_curvature_of_devices_that_are_flat_in_turn():
    flat_in_turn = devices((0.01, 1.0, 1.0), (1.0, 0.01, 1.0), (1.0, 1.0, 0.01))
    actual = suggest(PROBLEM, flat_in_turn, *START, rounds=200)
    assert np.isclose(actual.smallest, 0.67, rtol=1e-9)


def test_curvature_is_measured_near_the_solution():
    # Flat at the initial y: the curvature of a quartic at its solution is 300.
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(jnp.sum(y) + 0.0 * batch),
        lower_loss=lambda x, y, batch: jnp.mean(
            jnp.sum(0.25 * y**4 - 1000.0 * y + 0.5 * y**2) + 0.0 * batch
        ),
    )
    actual = suggest(problem, devices((1.0,)), *START, rounds=3000)
    assert 250 < actual.curvature < 400


def test_a_loss_without_curvature_is_refused_with_a_cure():
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(jnp.sum(y) + 0.0 * batch),
        lower_loss=lambda x, y, batch: jnp.mean(jnp.sum(y) + 0.0 * batch),
    )
    with pytest.raises(ValueError, match="Add a penalty on y"):
        suggest(problem, devices((1.0,)), *START, rounds=100)


@pytest.mark.nightly
def test_every_engine_suggests_the_same():
    held = devices((3.0, 1.0, 2.0), (5.0, 1.0, 0.1))
    item = suggest(PROBLEM, held, *START, rounds=200)
    other = suggest(PROBLEM, held, *START, rounds=200, engine=Sharded())
    assert item.curvature == other.curvature
    np.testing.assert_allclose(item.remainders, other.remainders, rtol=1e-12)


@pytest.mark.parametrize("rounds", [100, *at_night(200, 1000)])
@pytest.mark.parametrize("batch_size", [None, *at_night(16)])
def test_it_costs_at_most_a_twentieth_of_the_run(rounds, batch_size):
    held = devices((3.0, 1.0, 2.0), (5.0, 1.0, 0.1))
    actual = suggest(PROBLEM, held, *START, rounds=rounds, batch_size=batch_size)
    assert actual.algorithm.batch_size == (batch_size or 256 // COUNT)
    spent = predict_costs(Run(PROBLEM, actual.algorithm, held, *START, rounds=rounds))
    assert actual.costs.samples <= 0.05 * spent.samples
    assert actual.costs.exchanges <= 0.05 * spent.exchanges
