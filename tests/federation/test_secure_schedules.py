"""Two hundred random schedules of dropouts in a secure sum."""

import pytest

from tests.federation.test_secure_sums import check_schedule

pytestmark = pytest.mark.nightly


def test_two_hundred_schedules_end_in_the_right_sum_or_a_refusal():
    ends = [check_schedule(seed) for seed in range(200)]
    assert 50 <= sum(ends) <= 190
