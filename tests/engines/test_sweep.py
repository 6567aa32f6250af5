"""A sweep gives the same numbers as separate runs, in one program."""

import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from fedbilevel import FedBiO, InMemoryDevices, Run, SimFBO, UniformSample, run, sweep
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, KINDS, in_tiers

WEIGHTS = np.array([1.0, 0.0, 2.5, 0.5, 1.0])
START = np.linspace(-1.0, 1.0, quadratic.X_SIZE), np.ones(quadratic.Y_SIZE)


def devices() -> InMemoryDevices:
    generator = np.random.default_rng(7)
    return InMemoryDevices(
        [quadratic.examples(generator, size, 0.3) for size in (3, 8, 5, 1, 6)]
    )


@pytest.mark.slow
@in_tiers(quick=(), check=KINDS[1:])
def test_a_sweep_gives_the_numbers_and_costs_of_runs(name):
    halved = jax.tree.map(lambda leaf: 0.5 * leaf, ALGORITHMS[name]())
    settings = [ALGORITHMS[name](), halved]
    common: Any = {"participation": UniformSample(3), "weights": WEIGHTS, "rounds": 3}
    result = sweep(
        Run(quadratic.problem(), settings[0], devices(), *START, **common),
        settings,
        seeds=[4, 5],
        measure=lambda server: (server.x, server.y),
    )
    for i, (algorithm, seed) in enumerate(zip(settings, (4, 5), strict=True)):
        for finished in run(
            quadratic.problem(), algorithm, devices(), *START, seed=seed, **common
        ):
            for mine, other in zip(
                result.measurements, (finished.x, finished.y), strict=True
            ):
                np.testing.assert_allclose(
                    mine[i, i, finished.number], other, rtol=0, atol=1e-10
                )
            assert result.costs[i][finished.number] == finished.costs


def test_settings_that_differ_in_more_than_numbers_are_refused():
    first = FedBiO(0.1)
    whole = Run(quadratic.problem(), first, devices(), *START, rounds=1)
    for other in (FedBiO(0.1, local_steps=2), SimFBO(0.1)):
        with pytest.raises(ValueError, match="differ in more than numbers"):
            sweep(whole, [first, other], seeds=[0], measure=lambda server: server.x)


def test_a_sweep_with_nothing_to_run_is_refused():
    algorithm = FedBiO(0.1)
    whole = Run(quadratic.problem(), algorithm, devices(), *START, rounds=2)
    with pytest.raises(ValueError, match="Pass at least 1 of each to sweep"):
        sweep(whole, [algorithm], seeds=[], measure=lambda server: server.x)


AS_A_USER = """
from dataclasses import replace

import numpy as np
from fedbilevel import LocalBSGVRM, NeumannSeries, Run, sweep
from fedbilevel.problems import quadratic_task, random_quadratic

quadratic = random_quadratic(devices=4, upper_size=10, lower_size=10)
task = quadratic_task(quadratic, examples=64, noise=1.0, curvature_noise=0.1)
settings = [
    LocalBSGVRM(rate, NeumannSeries(4, 0.1), initial_batch_size=64)
    for rate in (0.02, 0.05, 0.1, 0.2)
]
run = Run(task.problem, settings[0], task.devices, task.x, task.y, rounds=3)
result = sweep(run, settings, seeds=[0, 1, 2, 3], measure=lambda server: server.x)
for i, algorithm in enumerate(settings):
    *_, last = replace(run, algorithm=algorithm, seed=i)
    print(float(np.abs(np.asarray(last.x) - result.measurements[i, i, -1]).max()))
"""


@pytest.mark.nightly
@pytest.mark.process
def test_a_sweep_is_right_as_compiled_for_users():
    # Tests are compiled with few optimisations; one release of the compiler had a wrong
    # one that this very sweep met.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    result = subprocess.run(
        [sys.executable, "-c", AS_A_USER],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert max(map(float, result.stdout.split())) < 1e-5
