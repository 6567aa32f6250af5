"""A minority that always sends the largest allowed upload: when it succeeds.

The mean of honest ways d and of bad ones −L d is (1 − p − p L) d: it leads away from
the solution where the distance limit L is above (1 − p) / p, the odds against bad ones.
"""

import numpy as np
import pytest

from fedbilevel import Limits
from fedbilevel.engines.limits import reach_of
from fedbilevel.experiments.federation import DISTANCE_LIMIT
from tests.algorithms.table import at_night
from tests.federation.bad_schedules import NORM_LIMIT, BadSites, Plan
from tests.federation.scalar import (
    NAMES,
    START_ERROR,
    carried_out,
    last_error,
    sites,
)
from tests.federation.sites import Clock


def ended(bad: int, distance: float) -> float:
    """Return the error after 30 rounds with poisoners, relative to the initial error.

    Poisoners collude, know the honest uploads, and always send the largest allowed
    upload.
    """
    plans = dict.fromkeys(NAMES[:bad], Plan(("poisons near",), often=1.0))
    limits = Limits(NORM_LIMIT, distance)
    draw = np.random.default_rng(0)
    name = f"odds{bad}of{distance:g}".replace(".", "point")
    clock = Clock()
    transport = BadSites(sites(), plans, limits, clock, 0.1, draw)
    outcome = carried_out(transport, limits, name, rounds=30, clock=clock)
    assert all(record.counted == NAMES for record in outcome.records)
    return last_error(outcome) / START_ERROR


@pytest.mark.nightly
@pytest.mark.parametrize("bad", [2, *at_night(1, 3, 4)])
def test_poisoners_win_if_the_limit_is_above_the_odds_against_them(bad):
    part = bad / len(NAMES)
    odds = (1 - part) / part
    assert ended(bad, 0.9 * odds) < 0.8
    assert ended(bad, 1.1 * odds) > 1.2


@pytest.mark.slow
def test_at_the_limit_of_federations_one_poisoner_of_nine_wins():
    # 10 is above the odds of 8 to 1; 10 holds where fewer than 1 in 11 are bad.
    assert ended(1, DISTANCE_LIMIT) > 1.5


@pytest.mark.parametrize("above", [False, True])
def test_where_sites_differ_poisoners_shift_the_result_even_below_the_odds(above):
    """Minimise the mean of ½ (x − aₖ)² over the aₖ of honest sites, whose mean is 0."""
    honest, bad = np.linspace(-1.0, 1.0, 7), 2
    part = bad / (len(honest) + bad)
    limit = (1.1 if above else 0.8) * (1 - part) / part
    x = 0.0
    for _ in range(400):
        ways = np.abs(honest - x)
        # Distant uploads of poisoners do not change the median.
        gone = np.concatenate([ways, np.full(bad, np.inf)])[None]
        (reach,) = reach_of(np, gone, np.ones(gone.size, bool), limit)
        assert np.all(ways <= reach)
        x += 0.1 * ((1 - part) * np.mean(honest - x) + part * reach)
    if above:
        assert x > 50
        return
    # The median distance is at most |x| + SPREAD; honest sites pull x back by 1 − p.
    spread = np.sort(np.abs(honest))[(len(honest) + bad) // 2]
    most = part * limit / (1 - part - part * limit) * spread
    assert 1.0 < x <= most
