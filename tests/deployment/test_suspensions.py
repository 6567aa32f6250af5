"""A failed site is suspended for longer each time, or until its entry is removed.

Nightly with separate server and site processes: `test_bad_sites`.
"""

import json

from fedbilevel.deployment.suspensions import LONGEST, SUSPENSIONS, Suspensions

DIED = {"west": "its worker process ended"}


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_each_failure_doubles_the_time(tmp_path):
    clock = Clock()
    suspensions = Suspensions(tmp_path, clock)
    for job, seconds in enumerate([30.0, 60.0, 120.0]):
        (message,) = suspensions.note(str(job), DIED)
        assert message.endswith(f"ended; suspended for {seconds:.0f} seconds")
        clock.now += seconds - 0.1
        assert suspensions.names() == {"west"}
        clock.now += 0.2
        assert suspensions.names() == set()
    for job in range(3, 30):
        suspensions.note(str(job), DIED)
    result = json.loads((tmp_path / SUSPENSIONS).read_text())
    assert result["west"]["seconds"] == LONGEST


def test_a_failure_counts_once_a_job(tmp_path):
    suspensions = Suspensions(tmp_path)
    assert len(suspensions.note("1", DIED)) == 1
    assert suspensions.note("1", DIED) == []
    assert json.loads((tmp_path / SUSPENSIONS).read_text())["west"]["times"] == 1


def test_who_removes_an_entry_lets_the_site_back_at_once(tmp_path):
    suspensions = Suspensions(tmp_path)
    suspensions.note("1", {**DIED, "east": "sends its answers too slowly"})
    file = tmp_path / SUSPENSIONS
    entries = json.loads(file.read_text())
    del entries["west"]
    file.write_text(json.dumps(entries))
    assert suspensions.names() == {"east"}
    file.write_text("not JSON")
    assert suspensions.names() == set()


def test_another_command_asks_the_site_again_but_remembers_its_failures(tmp_path):
    Suspensions(tmp_path).note("1", DIED)
    again = Suspensions(tmp_path)
    assert again.names() == set()
    (message,) = again.note("2", DIED)
    assert message.endswith("suspended for 60 seconds")
    assert again.reasons() == "west failed in 2 jobs: its worker process ended"
