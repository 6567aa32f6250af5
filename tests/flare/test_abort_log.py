"""The server records who aborted a job, before NVIDIA FLARE executes the command.

With real processes: `tests/federation/test_flare_attacks.py`.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.private.fed.server.job_cmds import JobCommandModule

from fedbilevel.flare.abort_log import AbortLog, record_aborts
from fedbilevel.flare.job_state import ABORT, ABORTED, JobState

USER = "admin@university.org"


class Store:
    """A server with one job, whose metadata commands change."""

    def __init__(self, status: str) -> None:
        self.meta: dict[str, Any] = {"status": status}
        self.job_def_manager = self

    @contextmanager
    def new_context(self):
        yield None

    def update_meta(self, job: str, meta: dict[str, Any], context: object) -> None:
        self.meta |= meta


def command(store: Store, text: str) -> list[str]:
    """Execute a command of an administrator; return the executed commands."""
    register = ServerCommandRegister(store)
    executed: list[str] = []
    entry = SimpleNamespace(handler=lambda conn, args: executed.append(args[0]))
    register.get_command_entries = lambda name: [entry]
    register.add_filter(AbortLog())
    connection = Connection()
    connection.set_prop(ConnProps.USER_NAME, USER)
    job = SimpleNamespace(job_id="7", meta=store.meta)
    connection.set_prop(JobCommandModule.JOB, job)
    register.process_command(connection, text)
    return executed


def test_an_abort_is_recorded_with_its_user_and_time():
    store = Store("RUNNING")
    assert command(store, "abort_job 7") == ["abort_job"]
    store.meta["status"] = ABORTED
    state = JobState.of(store.meta)
    assert state.abort is not None
    assert state.abort.user == USER
    assert state.abort.time.endswith(" UTC")
    # A second request changes nothing.
    first = store.meta[ABORT]
    command(store, "abort_job 7")
    assert store.meta[ABORT] is first


@pytest.mark.parametrize(
    ("status", "text"),
    [("RUNNING", "get_job_meta 7"), ("FINISHED:EXECUTION_EXCEPTION", "abort_job 7")],
)
def test_other_commands_and_jobs_that_have_ended_are_not_recorded(status, text):
    store = Store(status)
    assert command(store, text) == [text.split()[0]]
    assert JobState.of(store.meta).abort is None


def test_an_abort_that_cannot_be_recorded_is_executed(monkeypatch):
    store = Store("RUNNING")
    monkeypatch.delattr(Store, "update_meta")
    assert command(store, "abort_job 7") == ["abort_job"]


def test_the_filter_comes_after_those_that_authenticate():
    server = SimpleNamespace(set_admin_server=lambda admin: None)
    record_aborts(server)
    register = ServerCommandRegister(None)
    server.set_admin_server(SimpleNamespace(cmd_reg=register))
    assert [type(item) for item in register.filters] == [AbortLog]


def test_only_a_submitted_job_has_an_obstacle():
    history = ["2026-11-19 16:20:31: missing required site west"]
    meta = {"status": "SUBMITTED", "schedule_history": history}
    assert JobState.of(meta).obstacle == "missing required site west"
    assert JobState.of({**meta, "status": "RUNNING"}).obstacle is None
    history.append("2026-11-19 16:20:41: scheduled")
    assert JobState.of(meta).obstacle is None
