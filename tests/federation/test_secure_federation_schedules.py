"""Two hundred random schedules of dropouts in a federation with secure sums."""

import pytest

from tests.federation.secure_federation import check_schedule

pytestmark = pytest.mark.nightly


def test_two_hundred_schedules_end_in_the_right_sum_or_a_refusal():
    ends = [check_schedule(seed, rounds=4) for seed in range(200)]
    assert 20 <= sum(ends) <= 160
