"""A job is stopped for a site that is back, but not for a site that refuses every job.

The same with real processes: `tests/federation/test_flare_faults.py`.
"""

import pytest

from fedbilevel.deployment.connection import Connection, UnreachableError
from fedbilevel.deployment.deadlines import EXCHANGE, Deadlines
from fedbilevel.federation import Exchange
from fedbilevel.flare import job_monitor
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.job_monitor import JobMonitor
from fedbilevel.flare.job_state import JobState
from tests.deployment.test_suspensions import Clock

DEADLINES = Deadlines(60.0, 60.0, 60.0, 60.0)
SITES = {"east", "north", "west"}


class Server(Administrator):
    """A server that runs one job, with sites chosen by the test."""

    def __init__(self) -> None:
        self.online, self.runs = set(SITES), set(SITES)
        self.aborted = False
        self.new_fields: dict[str, object] = {"warnings": {}}

    def state(self, job: str) -> JobState:
        return JobState("RUNNING")

    def abort(self, job: str) -> None:
        self.aborted = True

    def connected(self) -> set[str]:
        return set(self.online)

    def running(self, job: str) -> set[str]:
        return set(self.runs)

    def ask(self, job, topic, request):
        self.is_to_stop = request["stop"]
        # One of them only: what all participants are is not known.
        exchange = Exchange(0, 0, 0.1, ["east"], {}, [], 9, 9).line
        return {
            "stage": [1, EXCHANGE, []],
            "exchange": exchange,
            "exclusions": [],
            "failures": {},
            "first": 0,
            "records": [],
            **self.new_fields,
        }


def test_a_server_with_an_older_version_is_named(server):
    server.new_fields = {}
    watch = watched(server, SITES, set())
    watch.over()
    with pytest.raises(
        UnreachableError, match=r"lacks warnings: the server has an old"
    ):
        watch.ask({})


@pytest.fixture
def server(monkeypatch) -> Server:
    monkeypatch.setattr(job_monitor, "CHECK_SECONDS", 0.0)
    return Server()


def watched(
    server: Server, present: set[str], left_out: set[str], clock: Clock | None = None
) -> JobMonitor:
    """Return the monitor of a job whose exchanges have begun."""
    clock, connection = clock or Clock(), Connection(60.0)
    return JobMonitor(
        server, "7", present, lambda: SITES - left_out, DEADLINES, connection, clock
    )


def looks(watch: JobMonitor, count: int = 20) -> None:
    for _ in range(count):
        watch.ask({})


def test_a_site_that_was_away_when_a_job_began_stops_it(server):
    server.runs = {"east", "north"}
    watch = watched(server, {"east", "north"}, set())
    looks(watch)
    assert watch.stopping
    assert watch.reason == "west can participate again"


def test_a_site_that_does_not_run_its_job_is_suspended_first(server):
    server.runs = {"east", "north"}
    left_out: set[str] = set()
    watch = watched(server, SITES, left_out)
    looks(watch, 3)
    assert watch.idle == {"west"}
    assert not watch.stopping
    left_out.add("west")
    looks(watch)
    assert not watch.stopping
    left_out.clear()
    looks(watch)
    assert watch.stopping


def test_a_job_that_all_run_goes_on(server):
    watch = watched(server, SITES, set())
    looks(watch)
    assert not watch.stopping
    assert not watch.idle


def test_a_job_that_does_not_answer_is_overdue_though_the_server_answers(
    server, monkeypatch
):
    def unanswered(job, topic, request):
        raise ConnectionError("the command failed")

    monkeypatch.setattr(server, "ask", unanswered)
    clock = Clock()
    watch = watched(server, SITES, set(), clock)
    while not server.aborted and clock.now < 2000.0:
        watch.over()
        clock.now += 1.0
        watch.ask({})
    assert server.aborted
    assert "waited 901 seconds for the job to begin" in watch.reason


def test_a_stopped_job_is_aborted_in_mid_work_whatever_its_timeout(server):
    never, clock = Deadlines(1e9, 1e9, 1e9, 1e9), Clock()
    watch = JobMonitor(
        server, "7", SITES, lambda: SITES, never, Connection(60.0), clock
    )
    looks(watch)
    assert not watch.over()
    watch.stop()
    clock.now += 4.0
    assert not watch.over()
    assert not server.aborted
    clock.now += 2.0
    watch.over()
    assert server.aborted
