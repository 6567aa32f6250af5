"""Attacks on a real federation: a site that restarts as a run begins, and an abort.

By day with a scripted server: `tests/flare/test_supervision.py` and
`tests/flare/test_abort_log.py`. The table "Attacks on a federation" of
docs/security.md has the results before and after.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedbilevel.flare import rehearsals
from fedbilevel.flare.provisioning import Kits
from fedbilevel.flare.rehearsals import pids, rehearsal, session, start
from tests.federation import pulled
from tests.federation.experiments import ENVIRONMENT, federating, written
from tests.federation.live import Live
from tests.waiting import HANG, until

pytestmark = pytest.mark.nightly
SITES = tuple(pulled.SIZES)[:3]
ROUNDS = 30


@pytest.fixture
def kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kits]:
    (tmp_path / "pace").write_text("0.3")
    ours = {**ENVIRONMENT, pulled.PACE: str(tmp_path / "pace")}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rehearsals, "CONNECT_SECONDS", HANG)
    with rehearsal(tmp_path / "kits", SITES) as kits:
        yield kits


def settings(tmp_path: Path) -> Path:
    # On a busy machine a computation takes more than 60 seconds to start.
    lines = f"rounds = {ROUNDS}\nevaluation.every = 1\nfederation.timeout = 300.0\n"
    return written(tmp_path, "LocalBSGM", lines, SITES)


def test_a_first_run_waits_for_a_site_that_restarts(kits, tmp_path):
    (tmp_path / "pace").write_text("0.0")
    directory, west = tmp_path / "runs" / "LocalBSGM-federated", kits.sites[SITES[-1]]
    with federating(settings(tmp_path), "--federation.kit", str(kits.lead)) as command:
        command.until(lambda: (directory / "run").exists())
        # The server lists the killed site as connected for half a minute.
        for pid in pids(west):
            with suppress(ProcessLookupError):  # The process has ended meanwhile.
                os.kill(pid, signal.SIGKILL)
        command.until(lambda: "The job has not begun yet" in command.output)
        start(west)
        command.until_its_end()
        assert SITES[-1] in command.output.partition("The job has not begun yet")[2]
        exchanges = Live(command, directory, kits, tmp_path / "pace").exchanges()
    assert len(exchanges) == ROUNDS
    assert exchanges[0]["counted"] == list(SITES)


def test_an_abort_ends_the_run_which_the_same_command_resumes(kits, tmp_path):
    file, options = settings(tmp_path), ("--federation.kit", str(kits.lead))
    directory, pace = tmp_path / "runs" / "LocalBSGM-federated", tmp_path / "pace"
    with federating(file, *options) as command:
        live = Live(command, directory, kits, pace)
        command.until(lambda: (directory / "run").exists())
        command.until(lambda: len(live.exchanges()) > 5)
        job = (directory / "job").read_text()
        with session(kits) as administrator:
            administrator.abort_job(job)
        until(lambda: command.process.poll() is not None, lambda: command.output)
        assert command.process.returncode == 2
        user = json.loads((kits.admin / "startup" / "fed_admin.json").read_text())
        user = user["admin"]["username"]
        assert f"{user} aborted job {job} at 2" in command.output
        assert live.jobs == 1
        before = live.exchanges()
    with session(kits) as administrator:
        assert [item["job_id"] for item in administrator.list_jobs()] == [job]
    pace.unlink()
    with federating(file, *options) as command:
        command.until_its_end()
    exchanges = live.exchanges()
    assert 0 < len(before) < ROUNDS == len(exchanges)
