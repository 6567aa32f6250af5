"""Tests of a first run without settings against a search of 50 settings."""

import jax
import numpy as np
import pytest

from benchmarks import first_try
from benchmarks.custom_problems import PROBLEMS
from fedbilevel import AutoFedBiO, run

pytestmark = [pytest.mark.slow, pytest.mark.single_precision]


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROBLEMS)
@jax.numpy_dtype_promotion("standard")
def test_nine_tenths_of_the_improvement_at_the_first_try(name):
    losses = first_try.compare(PROBLEMS[name](), first_try.FAST)
    # There was something to gain.
    assert min(losses.searched) < 0.95 * losses.untuned
    assert losses.share >= 0.9, losses


def test_nine_tenths_of_what_the_best_penalty_gains():
    # Ridge regression has a closed form, and so has the best of all penalties.
    task = PROBLEMS["ridge"]()
    (a, b), (c, d) = (
        [np.asarray(array, float) for array in part]
        for part in (task.devices.pooled.lower, task.devices.pooled.upper)
    )

    def loss(penalty):
        square = a.T @ a / len(a) + penalty * np.eye(a.shape[1])
        y = np.linalg.solve(square, a.T @ b / len(a))
        return np.mean((c @ y - d) ** 2)

    rounds = 300
    algorithm = AutoFedBiO(rounds, batch_size=64)
    *_, last = run(task.problem, algorithm, task.devices, task.x, task.y, rounds=rounds)
    final = np.mean((c @ np.asarray(last.y) - d) ** 2)
    best = min(loss(np.exp(x)) for x in np.linspace(-6.0, 2.0, 200))
    assert loss(1.0) - final >= 0.9 * (loss(1.0) - best)
