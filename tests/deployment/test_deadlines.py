"""A job that answers but does not get on is noticed, and a server that is gone."""

import pytest

from fedbilevel.deployment.connection import Connection, UnreachableError
from fedbilevel.deployment.deadlines import (
    BEGINNING,
    ENDING,
    ENROLMENT,
    EXCHANGE,
    MEASUREMENT,
    Deadlines,
    Progress,
    Stage,
)
from tests.deployment.test_suspensions import Clock

DEADLINES = Deadlines(
    enrolment=50.0, exchange=40.0, round=30.0, measurement=20.0, reachable=3600.0
)


@pytest.mark.parametrize(
    ("stage", "most"),
    [(ENROLMENT, 50), (EXCHANGE, 40), (MEASUREMENT, 20), (ENDING, 30)],
)
def test_answers_without_progress_do_not_reset_the_watch(stage, most):
    clock = Clock()
    progress = Progress(DEADLINES, clock)
    clock.now = 100.0
    for _ in range(most):
        progress.at(Stage(7, stage, ["west"]))
        assert progress.overdue() is None
        clock.now += 1.0
    clock.now += 1.0
    progress.at(Stage(7, stage, ["west"]))
    assert progress.overdue() == (
        f"waited {most + 1} seconds for {stage} (west), and {most} are the most"
    )


def test_a_server_that_is_away_now_and_then_does_not_reset_the_watch():
    clock = Clock()
    progress = Progress(DEADLINES, clock)
    progress.at(Stage(7, EXCHANGE, ["west"]))
    for _ in range(4):
        clock.now += 9.0  # the job is seen to wait
        assert progress.overdue() is None
        clock.now += 1000.0  # the server does not answer
        progress.pause()
    progress.at(Stage(7, EXCHANGE, ["west"]))
    clock.now += 5.0
    assert "waited 41 seconds for an exchange (west)" in str(progress.overdue())


def test_another_exchange_begins_the_time_anew():
    clock = Clock()
    progress = Progress(DEADLINES, clock)
    for number in range(100):
        progress.at(Stage(number + 1, EXCHANGE, []))
        clock.now += 39.0
        assert progress.overdue() is None


def test_a_job_that_never_begins_is_given_up():
    clock = Clock()
    progress = Progress(DEADLINES, clock)
    clock.now = 901.0
    assert f"for {BEGINNING}, and 900 are the most" in str(progress.overdue())


def test_a_server_that_is_gone_is_told_of_ever_more_rarely_and_given_up():
    clock = Clock()
    reach = Connection(100 * 3600.0, clock)
    notices = []
    while clock.now <= 100 * 3600.0:
        notices.append(reach.missed("no route"))
        clock.now += 10.0
    with pytest.raises(UnreachableError, match="give the same command again"):
        reach.missed("no route")
    told = [one for one in notices if one]
    assert told[0] == "no answer for 20 seconds (no route); giving up after 360000"
    assert 10 < len(told) < 20


def test_an_answer_makes_silence_good():
    clock = Clock()
    reach = Connection(30.0, clock)
    for _ in range(10):
        reach.missed("no route")
        clock.now += 25.0
        reach.answered()
