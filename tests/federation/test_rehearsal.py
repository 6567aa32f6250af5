"""A rehearsal starts, listens on the loopback only and leaves no process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
from nvflare.fuel.flare_api.api_spec import AuthenticationError

from fedbilevel.flare import administrator
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.provisioning import Kits, port, provision_kits
from fedbilevel.flare.rehearsals import (
    connected_sites,
    pids,
    rehearsal,
    session,
    start,
    stop,
)
from tests.federation.processes import listening
from tests.waiting import HANG, until

SITES = ["site-1", "site-2"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    directory = tmp_path_factory.mktemp("federation")
    with rehearsal(directory, SITES) as kits:
        yield kits
    left = [process for kit in all_of(kits) for process in pids(kit)]
    assert left == []


def all_of(kits: Kits) -> list[Path]:
    return [kits.server, *kits.sites.values()]


def program(kit: Path) -> psutil.Process:
    """Return the process of the server or site, without its watchdog."""
    return psutil.Process(int((kit / "pid.fl").read_text()))


@pytest.mark.nightly
def test_the_administrator_sees_all_sites_connected(kits):
    assert connected_sites(kits) == set(SITES)


@pytest.mark.nightly
def test_nothing_listens_beyond_the_loopback(kits):
    heard = listening(pid for kit in all_of(kits) for pid in pids(kit))
    assert heard
    assert {address.removeprefix("::ffff:") for address in heard} == {"127.0.0.1"}


@pytest.mark.nightly
def test_what_runs_inherits_the_environment_and_this_python(kits):
    for kit in all_of(kits):
        running = program(kit)
        assert running.environ().get("XLA_FLAGS") == os.environ["XLA_FLAGS"]
        assert Path(running.cmdline()[0]).name == "python3"
        assert running.exe() == os.path.realpath(sys.executable)


@pytest.mark.nightly
def test_the_server_keeps_jobs_and_snapshots_in_its_kit(kits):
    with session(kits) as administrator:
        assert administrator.list_jobs() == []
    resources = (kits.server / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in resources
    assert (kits.server / "snapshots").is_dir()


@pytest.mark.nightly
def test_who_was_let_in_before_is_refused_only_after_a_while(kits, monkeypatch):
    def refusing(kit: Path) -> None:
        # The error after the server's clock jumped between two steps of a login.
        raise AuthenticationError("Incorrect user name or password")

    opening = administrator.open_session
    refusal = "refused the request: Incorrect user name"
    with Administrator(kits.admin) as item:
        assert item.connected() == set(SITES)
        item.close()
        monkeypatch.setattr(administrator, "open_session", refusing)
        with pytest.raises(ConnectionError, match="did not answer: Incorrect user"):
            item.connected()
        with pytest.raises(PermissionError, match=refusal):
            Administrator(kits.admin).connected()
        monkeypatch.setattr(administrator, "open_session", opening)
        assert item.connected() == set(SITES)
        item.close()
        monkeypatch.setattr(administrator, "open_session", refusing)
        monkeypatch.setattr(administrator, "REFUSED_SECONDS", 0.0)
        with pytest.raises(PermissionError, match=refusal):
            item.connected()


def write_job_that_names(component: str, directory: Path) -> Path:
    """A job without code, with a component that no kit allows."""
    named = [{"id": "_own", "path": component, "args": {}}]
    collab = "nvflare.collab.runtime"
    controller = {
        "id": "controller",
        "path": f"{collab}.controller.CollabController",
        "args": {"server_obj_id": "_own"},
    }
    executor = {
        "path": f"{collab}.executor.CollabExecutor",
        "args": {"client_obj_id": "_own"},
    }
    server = {"workflows": [controller], "components": named}
    site = {
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": named,
    }
    meta = {"name": "job", "min_clients": 2, "deploy_map": {"app": ["@ALL"]}}
    configuration = directory / "job" / "app" / "config"
    configuration.mkdir(parents=True)
    (directory / "job" / "meta.json").write_text(json.dumps(meta))
    for name, content in (("server", server), ("client", site)):
        file = configuration / f"config_fed_{name}.json"
        file.write_text(json.dumps({"format_version": 2} | content))
    return directory / "job"


@pytest.mark.nightly
def test_a_class_that_is_not_allowed_does_not_run_and_errors_stay_at_sites(
    kits, tmp_path
):
    job = write_job_that_names("json.JSONDecoder", tmp_path)
    with session(kits) as administrator:
        number = administrator.submit_job(str(job))
        result = administrator.wait_for_job(number, timeout=HANG, poll_interval=0.5)
    assert result["status"] == "FINISHED:ABNORMAL"
    refused = "'json.JSONDecoder' at config path 'components.#1' is not in allow_list"
    logs = [site / number / "error_log.txt" for site in kits.sites.values()]
    until(lambda: all(refused in log.read_text() for log in logs))
    time.sleep(3)  # A site that sends its error log has sent it by then.
    states = {file.name for file in (kits.server / "jobs" / number).iterdir()}
    assert states == {"data", "meta", "scheduled", "workspace"}


@pytest.mark.nightly
def test_a_kit_that_runs_is_not_started_twice(kits):
    with pytest.raises(RuntimeError, match="runs already"):
        start(kits.server)


@pytest.mark.nightly
def test_a_directory_serves_only_the_sites_it_was_created_for(kits):
    with (
        pytest.raises(ValueError, match="contains the kits of site-1, site-2"),
        rehearsal(kits.server.parents[2], ["site-1"]),
    ):
        pass


@pytest.mark.nightly
def test_a_killed_site_is_started_again_by_its_watchdog(kits):
    site = kits.sites["site-2"]
    killed = program(site)
    killed.kill()
    until(lambda: int((site / "pid.fl").read_text()) != killed.pid)
    # The server lists the killed site for 30 s, so wait for its second registration.
    registered = "Successfully registered client:site-2"
    until(lambda: (site / "log.txt").read_text().count(registered) == 2)


@pytest.mark.nightly
def test_a_stopped_site_leaves_no_process_and_can_return(kits):
    site = kits.sites["site-2"]
    before = pids(site)
    assert len(before) >= 2
    stop(site)
    assert pids(site) == []
    assert "site-1" in connected_sites(kits)
    start(site)
    until(lambda: len(pids(site)) >= 2)


@pytest.mark.process
def test_a_port_that_is_taken_is_named(tmp_path):
    server = provision_kits(tmp_path, ["site-1"]).server
    with (
        socket.create_server(("127.0.0.1", port(server))),
        pytest.raises(RuntimeError, match=f"Port {port(server)} .* is in use"),
        rehearsal(tmp_path, ["site-1"]),
    ):
        pass
    assert pids(server) == []


@pytest.mark.nightly
def test_an_interrupted_rehearsal_leaves_no_process(tmp_path):
    script = f"""
import signal, time
from pathlib import Path
from fedbilevel.flare.rehearsals import rehearsal
# A user who runs the tests in the background of a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with rehearsal(Path({str(tmp_path)!r}), ["site-1"]):
    time.sleep(600)
"""
    created_files = tmp_path / "rehearsal" / "prod_00"
    begun = [created_files / kit / "pid.fl" for kit in ("localhost", "site-1")]
    with subprocess.Popen([sys.executable, "-c", script], stderr=PIPE) as parent:
        try:
            until(lambda: all(file.exists() for file in begun))
            parent.send_signal(signal.SIGINT)
            _, output = parent.communicate(timeout=HANG)
        finally:
            parent.kill()
    assert b"KeyboardInterrupt" in output
    assert pids(created_files / "localhost") + pids(created_files / "site-1") == []


@pytest.mark.nightly
def test_a_program_ends_that_is_interrupted_while_it_connects(tmp_path):
    kits = provision_kits(tmp_path, SITES)
    script = f"""
import os, signal, threading
from pathlib import Path
import nvflare.fuel.flare_api.flare_api
from fedbilevel.flare.administrator import open_session
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
open_session(Path({str(kits.admin)!r}))  # for 10 s: no server runs
"""
    result = subprocess.run(
        [sys.executable, "-c", script], stderr=PIPE, text=True, timeout=HANG
    )
    assert result.stderr.endswith("\nKeyboardInterrupt\n")


@pytest.mark.process
def test_nvflare_that_is_missing_is_named():
    script = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "nvflare" else found(name)
"""
    result = subprocess.run(
        [sys.executable, "-c", script + "import fedbilevel.flare"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install 'fedbilevel[nvflare]'" in result.stderr
