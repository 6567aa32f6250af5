"""A federation whose problem is one of PyTorch survives kills, and ends as with JAX.

The simulation that it is compared with has the same losses in JAX.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fedbilevel.flare.provisioning import provision_kits
from fedbilevel.flare.rehearsals import pids, start, stop
from tests.federation import pulled
from tests.federation.experiments import ENVIRONMENT, SITES, federating, written
from tests.federation.live import Live, assert_ends_as_simulated

ROUNDS = 120
SETTINGS = f"""
rounds = {ROUNDS}
evaluation.every = 1
checkpoints.every = 5
federation.timeout = 15.0
"""
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("torch")
    file = written(home, "LocalBSGVRM", SETTINGS)
    directory = home / "runs" / "LocalBSGVRM-federated"
    pace = home / "pace"
    pace.write_text("1")
    kits = provision_kits(directory / "kits", SITES)
    ours = {pulled.PACE: str(pace), pulled.LIBRARY: "torch"}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**ENVIRONMENT, **ours}.items():
            environment.setenv(name, value)
        try:
            with federating(file, **ours) as command:
                running = Live(command, directory, kits, pace)
                command.until(lambda: (directory / "run").exists())
                command.until(lambda: len(running.exchanges()) > 6)
                # From here on, this process builds the task with JAX.
                environment.delenv(pulled.LIBRARY)
                yield running
        finally:
            stop(kits.server, *kits.sites.values())


def test_sites_compute_with_pytorch(live):
    for kit in live.kits.sites.values():
        (computation,) = live.processes(kit, "worker.child")
        libraries = {mapped.path for mapped in computation.memory_maps()}
        assert any("libtorch_cpu" in path for path in libraries)


def test_a_killed_computation_is_missed_and_back_in_the_same_job(live):
    jobs, begun = live.jobs, len(live.exchanges())
    live.kill_computation("east")
    live.command.until(
        lambda: any("east" in item["excluded"] for item in live.exchanges()[begun:])
    )
    live.until_all_count()
    assert live.jobs == jobs


def resumes(live: Live, harm: Callable[[], None]) -> None:
    """Cause a fault; check that another job resumes from the last checkpoint."""
    jobs = live.jobs
    assert live.checkpoint() > 0
    harm()
    live.command.until(lambda: live.jobs > jobs)
    live.until_all_count()


def test_a_killed_site_is_missed_and_back_in_another_job(live, monkeypatch):
    site = live.kits.sites["west"]
    monkeypatch.setenv(pulled.LIBRARY, "torch")

    def kill() -> None:
        for pid in pids(site):
            with suppress(ProcessLookupError):  # The process has ended meanwhile.
                os.kill(pid, signal.SIGKILL)
        live.command.until(lambda: "west" in live.exchanges()[-1]["excluded"])
        start(site)

    resumes(live, kill)


def test_a_killed_server_is_started_again_and_another_job_goes_on(live):
    def kill() -> None:
        server = live.kits.server
        for process in live.processes(server, "nvflare.private.fed.app.server"):
            process.kill()

    resumes(live, kill)


def test_the_run_ends_as_a_simulation_with_jax(live):
    live.pace.unlink()
    live.command.until_its_end()
    lines = (live.directory / "exchanges.jsonl").read_text().splitlines()
    counted = [
        tuple(SITES.index(site) for site in json.loads(line)["counted"])
        for line in lines
    ]
    assert len(counted) == ROUNDS
    assert {3, 4} <= set(map(len, counted))
    assert_ends_as_simulated(live.directory, counted)
