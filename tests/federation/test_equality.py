"""A federation follows the simulation's trajectory, whatever carries its messages."""

import jax
import numpy as np
import pytest

from fedbilevel import Simulation, run
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines.federation import ROUNDS, START, WEIGHTS, trajectory
from tests.federation.sites import enrolled, federation, sites


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sites_in_this_process_follow_the_simulation(name):
    expected = trajectory(name, Simulation())
    among = sites(ALGORITHMS[name])
    rounds = run(
        quadratic.problem(),
        ALGORITHMS[name](),
        enrolled(among),
        *START,
        rounds=ROUNDS,
        weights=WEIGHTS,
        engine=federation(among),
    )
    for done, wanted in zip(rounds, expected, strict=True):
        found = np.concatenate(
            [np.ravel(leaf) for leaf in jax.tree.leaves(done.server)]
        )
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
