"""A federation follows the simulation's trajectory, whatever carries its messages."""

import jax
import numpy as np
import pytest

from fedbilevel import Simulation, run
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, at_night
from tests.engines.federation import ROUNDS, START, WEIGHTS, held, trajectory
from tests.federation.sites import enrolled, federation, sites_holding

pytestmark = pytest.mark.slow

# One of each kind: what an exchange does does not depend on the formulas in it, and all
# algorithms are held to each other by the other engines.
KINDS = (
    "LocalBSGM",
    "LocalBSGVRM, decaying, warm start",
    "FedNest",
    "FedBiOAcc, private lower level",
    "SimFBO",
    "two exchanges, private state",
)


# By day the last kind: sites of five sizes compile every phase five times. Sites of one
# size are held by day to plain loops, for two more kinds: test_faults.
@pytest.mark.parametrize("name", [*at_night(*KINDS[:-1]), *KINDS[-1:]])
def test_sites_in_this_process_follow_the_simulation(name):
    expected = trajectory(name, Simulation())
    problem, algorithm = quadratic.problem(), ALGORITHMS[name]()
    among = sites_holding(held(), problem, algorithm)
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
