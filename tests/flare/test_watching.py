"""A job is made anew for a site that is back, and not for one that never takes it.

The same with real processes: `tests/federation/test_flare_faults.py`.
"""

import pytest

from fedbilevel.flare import watching
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.deadlines import EXCHANGE, Deadlines
from fedbilevel.flare.reach import Reach
from fedbilevel.flare.watching import Watch

DEADLINES = Deadlines(60.0, 60.0, 60.0, 60.0, 60.0)
SITES = {"east", "north", "west"}


class Server(Administrator):
    """A server that runs one job, in whose sites a test has a say."""

    def __init__(self) -> None:
        self.there, self.runs = set(SITES), set(SITES)

    def connected(self) -> set[str]:
        return set(self.there)

    def running(self, job: str) -> set[str]:
        return set(self.runs)

    def ask(self, job, topic, asked):
        self.is_to_stop = asked["stop"]
        return {"stage": [1, EXCHANGE, []], "exchange": "{}"}


@pytest.fixture
def server(monkeypatch) -> Server:
    monkeypatch.setattr(watching, "LOOK", 0.0)
    return Server()


def watched(server: Server, present: set[str], left_out: set[str]) -> Watch:
    """Return a watch over a job whose sites have begun to exchange."""
    return Watch(server, "7", present, lambda: SITES - left_out, DEADLINES, Reach(60.0))


def looks(watch: Watch, count: int = 20) -> None:
    for _ in range(count):
        watch.ask({})


def test_a_site_that_was_away_when_a_job_began_has_it_made_anew(server):
    server.runs = {"east", "north"}
    watch = watched(server, {"east", "north"}, set())
    looks(watch)
    assert watch.stopping
    assert watch.words == "west can take part again"


def test_a_site_that_does_not_run_its_job_is_left_out_first(server):
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
