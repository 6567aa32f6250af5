"""A federation follows the simulation's trajectory over any transport."""

import jax
import numpy as np
import pytest

from fedbilevel import Simulation, run
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, at_night
from tests.engines.federation import ROUNDS, START, WEIGHTS, held, trajectory
from tests.federation.sites import enrolled, federation, sites_holding

pytestmark = pytest.mark.slow

# One algorithm of each type: exchanges do not depend on an algorithm's formulas, and
# the other engines compare all algorithms.
KINDS = (
    "LocalBSGM",
    "LocalBSGVRM, decaying, warm start",
    "FedNest",
    "FedBiOAcc, private lower level",
    "SimFBO",
    "two exchanges, private state",
)


# By day the last type only: sites of five sizes compile every phase five times. Two
# more types are tested by day with sites of one size: test_faults.
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
    for step, wanted in zip(rounds, expected, strict=True):
        server = [np.ravel(leaf) for leaf in jax.tree.leaves(step.server)]
        np.testing.assert_allclose(np.concatenate(server), wanted, rtol=0, atol=1e-10)
