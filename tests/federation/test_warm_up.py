"""A site compiles every distinct phase once before it enrols, and nothing later."""

import jax
import pytest

from fedbilevel import (
    FederatedAlgorithm,
    LFedNest,
    LocalBSGM,
    NeumannSeries,
    WarmStart,
    run,
)
from tests import quadratic
from tests.engines.federation import START
from tests.federation.sites import enrolled, federation, sites_holding

pytestmark = pytest.mark.slow

SERIES = NeumannSeries(terms=1, scale=0.15)
# Distinct phases: warm start, last of the opening, later rounds; lower level (twice a
# round) and upper level.
ALGORITHMS: dict[str, tuple[FederatedAlgorithm, int]] = {
    "LocalBSGM": (LocalBSGM(0.1, SERIES, warm_start=WarmStart(0.1, exchanges=6)), 3),
    "LFedNest": (LFedNest(0.1, SERIES, lower_rounds=2), 2),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_site_compiles_each_distinct_phase_once(name, caplog):
    def compilations() -> int:
        return sum(
            "Compiling jit(compute_on_device)" in message for message in caplog.messages
        )

    algorithm, distinct = ALGORITHMS[name]
    problem = quadratic.problem()
    among = sites_holding(quadratic.devices(1, 2, 0.1), problem, algorithm)
    with jax.log_compiles(True):
        among["site-0"].warm_up()
        assert compilations() == distinct
        engine = federation(among)
        list(run(problem, algorithm, enrolled(among), *START, rounds=2, engine=engine))
        assert compilations() == distinct


def test_a_site_enrols_without_computing():
    # Hours of work, if the phase were run.
    algorithm = LocalBSGM(0.1, SERIES, local_steps=1_000_000_000)
    among = sites_holding(quadratic.devices(1, 2, 0.1), quadratic.problem(), algorithm)
    among["site-0"].warm_up()
    assert among["site-0"].enrol()
