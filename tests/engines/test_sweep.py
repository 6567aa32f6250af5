"""A sweep is so many runs, made in one program."""

from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import FedBiO, InMemoryDevices, LocalBSGM, UniformSample, run, sweep
from tests import quadratic
from tests.algorithms.table import ALGORITHMS

WEIGHTS = np.array([1.0, 0.0, 2.5, 0.5, 1.0])
START = np.linspace(-1.0, 1.0, quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)


def devices() -> InMemoryDevices:
    generator = np.random.default_rng(7)
    return InMemoryDevices(
        [quadratic.examples(generator, size, 0.3) for size in (3, 8, 5, 1, 6)]
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sweep_gives_the_numbers_and_costs_of_runs(name):
    halved = jax.tree.map(lambda leaf: 0.5 * leaf, ALGORITHMS[name]())
    settings = [ALGORITHMS[name](), halved]
    common: Any = {"participation": UniformSample(3), "weights": WEIGHTS, "rounds": 3}
    done = sweep(
        quadratic.problem(),
        settings,
        devices(),
        *START,
        seeds=[4, 5],
        measure=lambda server: (server.x, server.y),
        **common,
    )
    for i, (algorithm, seed) in enumerate(zip(settings, (4, 5), strict=True)):
        for finished in run(
            quadratic.problem(), algorithm, devices(), *START, seed=seed, **common
        ):
            for mine, other in zip(done.measured, finished.server[:2], strict=True):
                np.testing.assert_allclose(
                    mine[i, i, finished.number], other, rtol=0, atol=1e-10
                )
            assert done.costs[finished.number] == finished.costs


def test_settings_that_differ_in_more_than_numbers_are_refused():
    for other in (FedBiO(0.1, local_steps=2), LocalBSGM(0.1, None)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="numbers only"):
            sweep(
                quadratic.problem(),
                [FedBiO(0.1), other],
                devices(),
                *START,
                rounds=1,
                seeds=[0],
                measure=lambda server: server.x,
            )
