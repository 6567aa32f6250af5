"""The requests of a day, and the delay with which a change is noticed."""

import pytest

from fedbilevel.deployment.poll_schedule import LONGEST, SHORTEST, PollSchedule
from tests.deployment.test_suspensions import Clock

DAY = 86_400.0


def requests(clock: Clock, schedule: PollSchedule, changes: bool) -> int:
    """Return the requests until the end of a day."""
    count = 0
    while clock.now < DAY:
        clock.now += schedule.pause()
        count += 1
        if changes:
            schedule.note_change()
    return count


def test_a_day_without_a_change_takes_3_000_requests():
    clock = Clock()
    clock.now = 0.0
    assert 2_880 <= requests(clock, PollSchedule(clock), changes=False) <= 3_000


def test_a_day_in_which_every_request_finds_a_change_takes_10_000_requests():
    clock = Clock()
    clock.now = 0.0
    assert 8_640 <= requests(clock, PollSchedule(clock), changes=True) <= 10_500


@pytest.mark.parametrize("quiet", [3.0, 20.0, 100.0, 1000.0, 5000.0])
def test_a_change_is_noticed_after_a_tenth_of_the_time_that_it_took(quiet):
    clock = Clock()
    schedule = PollSchedule(clock)
    begun = clock.now
    while clock.now < begun + quiet:
        clock.now += schedule.pause()
    late = clock.now - begun - quiet
    assert late <= max(SHORTEST, min(LONGEST, 0.1 * quiet))
    schedule.note_change()
    assert schedule.pause() <= max(SHORTEST, 0.002 * (clock.now - begun))
