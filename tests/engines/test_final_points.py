"""The last points of many runs are those of `run`, for any number of rounds."""

from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import (
    FedBiO,
    InMemoryDevices,
    Limits,
    NoUploadsError,
    Run,
    UniformSample,
    run,
)
from fedbilevel.engines.final_points import final_points
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, at_night

WEIGHTS = np.array([1.0, 0.0, 2.5, 0.5, 1.0])
START = np.linspace(-1.0, 1.0, quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)


def devices() -> InMemoryDevices:
    generator = np.random.default_rng(7)
    return InMemoryDevices(
        [quadratic.examples(generator, size, 0.3) for size in (3, 8, 5, 1, 6)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedBiO", *at_night("LocalBSGVRM")])
def test_the_numbers_are_those_of_runs(name):
    whole = ALGORITHMS[name]()
    halved = jax.tree.map(lambda leaf: 0.5 * leaf, whole)
    common: Any = {"participation": UniformSample(3), "weights": WEIGHTS}
    run_to_end = final_points(
        Run(quadratic.problem(), whole, devices(), *START, rounds=6, **common)
    )
    pairs = [(whole, 4), (halved, 5), (whole, 5)]
    for rounds in (1, 3, 6):
        actual = run_to_end(pairs, rounds)
        for place, (algorithm, seed) in enumerate(pairs):
            *_, last = run(
                quadratic.problem(),
                algorithm,
                devices(),
                *START,
                rounds=rounds,
                seed=seed,
                **common,
            )
            for mine, other in zip(actual.of(place), (last.x, last.y), strict=True):
                np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10)


@pytest.mark.nightly
def test_large_uploads_are_left_out_as_in_a_run():
    algorithm = FedBiO(0.1, local_steps=3)
    common: Any = {"limits": Limits(norm=1.5)}
    args = quadratic.problem(), algorithm, devices(), *START
    *_, last = run(*args, rounds=2, **common)
    *_, free = run(*args, rounds=2)
    assert np.abs(np.asarray(last.x) - np.asarray(free.x)).max() > 1e-6
    actual = final_points(Run(*args, rounds=2, **common))([(algorithm, 0)], 2)
    np.testing.assert_allclose(actual.of(0)[0], last.x, rtol=0, atol=1e-10)


@pytest.mark.nightly
def test_a_run_that_would_stop_is_not_finite_and_harms_no_other():
    good, bad = FedBiO(0.1), FedBiO(1e200)
    args = quadratic.problem(), good, devices(), *START
    actual = final_points(Run(*args, rounds=5))([(good, 0), (bad, 0)], 5)
    assert np.isfinite(actual.of(0)[0]).all()
    assert np.isnan(actual.of(1)[0]).all()
    with pytest.raises(NoUploadsError):
        list(run(quadratic.problem(), bad, devices(), *START, rounds=5))


@pytest.mark.parametrize("rounds", [0, 6])
def test_other_numbers_of_rounds_are_refused(rounds):
    algorithm = FedBiO(0.1)
    run_to_end = final_points(
        Run(quadratic.problem(), algorithm, devices(), *START, rounds=5)
    )
    with pytest.raises(ValueError, match="rounds from 1 to 5"):
        run_to_end([(algorithm, 0)], rounds)
