"""A federation follows the simulation's trajectory, whatever carries its messages."""

import jax
import numpy as np
import pytest

from fedbilevel import Simulation, run
from fedbilevel.engines.federation import Federation, Site
from fedbilevel.engines.federation.in_process import InProcess
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines.federation import ROUNDS, START, WEIGHTS, held, trajectory


def federation(name: str) -> Federation:
    sites = {
        f"site-{number}": Site(
            number, quadratic.problem(), ALGORITHMS[name](), examples, *START
        )
        for number, examples in enumerate(held())
    }
    return Federation(InProcess(sites), timeout=1.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sites_in_this_process_follow_the_simulation(name):
    expected = trajectory(name, Simulation())
    server = federation(name)
    rounds = run(
        quadratic.problem(),
        ALGORITHMS[name](),
        server.devices,
        *START,
        rounds=ROUNDS,
        weights=WEIGHTS,
        engine=server,
    )
    for done, wanted in zip(rounds, expected, strict=True):
        found = np.concatenate(
            [np.ravel(leaf) for leaf in jax.tree.leaves(done.server)]
        )
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
