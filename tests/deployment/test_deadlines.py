"""Deadlines detect a job without progress and an unreachable server."""

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

DEADLINES = Deadlines(enrolment=50.0, exchange=40.0, measurement=20.0, reachable=3600.0)


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
        f"waited {most + 1} seconds for {stage} (west); the deadline is {most} seconds"
    )


def test_a_server_that_is_away_now_and_then_does_not_reset_the_watch():
    clock = Clock()
    progress = Progress(DEADLINES, clock)
    progress.at(Stage(7, EXCHANGE, ["west"]))
    for _ in range(4):
        clock.now += 9.0  # The job reports that it waits.
        assert progress.overdue() is None
        clock.now += 1000.0  # The server does not answer.
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


def test_a_job_that_never_begins_is_overdue():
    clock = Clock()
    progress = Progress(DEADLINES, clock)
    clock.now = 901.0
    assert f"for {BEGINNING}; the deadline is 900 seconds" in str(progress.overdue())


def test_an_unreachable_server_is_reported_less_and_less_often():
    clock = Clock()
    reach = Connection(100 * 3600.0, clock)
    notices = []
    while clock.now <= 100 * 3600.0:
        notices.append(reach.note_miss("no route"))
        clock.now += 10.0
    with pytest.raises(UnreachableError, match="give the same command again"):
        reach.note_miss("no route")
    printed_notices = [notice for notice in notices if notice]
    first = "no answer from the server for 20 seconds (no route); giving up after "
    assert printed_notices[0] == f"{first}360000 seconds"
    assert 10 < len(printed_notices) < 20


def test_an_answer_makes_silence_good():
    clock = Clock()
    reach = Connection(30.0, clock)
    for _ in range(10):
        reach.note_miss("no route")
        clock.now += 25.0
        reach.note_answer()
