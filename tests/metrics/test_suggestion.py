"""Suggested settings against known answers, the badly conditioned ones first."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    InMemoryDevices,
    LocalExamples,
    Sharded,
    predict_costs,
    suggest,
)

pytestmark = pytest.mark.slow

START = np.zeros(()), np.zeros(3)
PROBLEM = BilevelProblem(
    # ∇y f = −(1, 1, 1) wherever y is, and H = diag of the batch's mean.
    upper_loss=lambda x, y, batch: jnp.mean(-jnp.sum(y) + 0.0 * batch),
    lower_loss=lambda x, y, batch: 0.5 * jnp.sum(jnp.mean(batch, 0) * y**2) - x * y[0],
)


def devices(*diagonals):
    held = [np.asarray([one]) for one in diagonals]
    return InMemoryDevices([LocalExamples(one, one) for one in held])


@pytest.mark.parametrize(
    "diagonal", [(1e3, 1.0, 1e-3), (2.0, 1.0, 1.5), (1e-6, 2e-6, 4e-6), (1e9, 1e8, 1e7)]
)
def test_curvature_and_remainders_are_those_of_the_matrix(diagonal):
    found = suggest(PROBLEM, devices(diagonal, diagonal), *START, rounds=300)
    largest = max(diagonal)
    # Ten products may miss a little of it; a class of curvature is a twelfth wide.
    assert 0.97 * largest < found.curvature < 1.1 * largest
    assert found.lower_rate == found.adjoint_rate == 1 / found.curvature
    left = 1 - np.array(diagonal) / found.curvature
    powers = 2 ** np.arange(7)
    expected = np.linalg.norm(left ** powers[:, None], axis=1) / np.sqrt(3)
    np.testing.assert_allclose(found.remainders, expected, rtol=1e-9, atol=1e-12)
    close = powers[expected <= 0.1]
    if len(close):
        assert found.series is not None
        assert found.series.terms == close[0]
    else:
        assert found.series is None
        assert "Use an algorithm with an adjoint" in found.reasons["series"]
    # Along what is left after 64 terms: a mean of curvatures, not below the smallest.
    assert min(diagonal) * (1 - 1e-9) <= found.smallest <= largest


def test_the_curvature_is_a_high_quantile_over_devices():
    mild, wild = (1.0, 1.0, 1.0), (100.0, 1.0, 1.0)
    few = suggest(PROBLEM, devices(*[mild] * 19, wild), *START, rounds=200)
    many = suggest(PROBLEM, devices(*[mild] * 16, *[wild] * 4), *START, rounds=200)
    assert 1.0 <= few.curvature < 1.1
    assert 97.0 < many.curvature < 110.0
    light = suggest(
        PROBLEM,
        devices(*[mild] * 16, *[wild] * 4),
        *START,
        rounds=200,
        weights=[10.0] * 16 + [1.0] * 4,
    )
    assert 1.0 <= light.curvature < 1.1


def test_negative_curvature_is_told():
    found = suggest(PROBLEM, devices((1.0, 0.5, -0.1)), *START, rounds=200)
    assert found.series is None
    assert abs(found.smallest - -0.1) < 1e-3
    assert "-0.1" in str(found)


def test_curvature_is_measured_near_the_solution():
    # Flat where y begins: the curvature of a quartic at its solution is 300.
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(jnp.sum(y) + 0.0 * batch),
        lower_loss=lambda x, y, batch: jnp.mean(
            jnp.sum(0.25 * y**4 - 1000.0 * y + 0.5 * y**2) + 0.0 * batch
        ),
    )
    found = suggest(problem, devices((1.0,)), *START, rounds=3000)
    assert 250 < found.curvature < 400


def test_a_loss_without_curvature_is_refused_with_a_cure():
    problem = BilevelProblem(
        upper_loss=lambda x, y, batch: jnp.mean(jnp.sum(y) + 0.0 * batch),
        lower_loss=lambda x, y, batch: jnp.mean(jnp.sum(y) + 0.0 * batch),
    )
    with pytest.raises(ValueError, match="add a penalty on y"):
        suggest(problem, devices((1.0,)), *START, rounds=100)


def test_every_engine_suggests_the_same():
    held = devices((3.0, 1.0, 2.0), (5.0, 1.0, 0.1))
    one = suggest(PROBLEM, held, *START, rounds=200)
    other = suggest(PROBLEM, held, *START, rounds=200, engine=Sharded())
    assert one.curvature == other.curvature
    np.testing.assert_allclose(one.remainders, other.remainders, rtol=1e-12)


@pytest.mark.parametrize("rounds", [100, 200, 1000])
def test_it_costs_at_most_a_twentieth_of_the_run(rounds):
    held = devices((3.0, 1.0, 2.0), (5.0, 1.0, 0.1))
    found = suggest(PROBLEM, held, *START, rounds=rounds)
    spent = predict_costs(PROBLEM, found.algorithm, held, *START, rounds=rounds)
    assert found.costs.samples <= 0.05 * spent.samples
    assert found.costs.exchanges <= 0.05 * spent.exchanges
