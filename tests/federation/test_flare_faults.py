"""A federation survives all faults of its processes, in this order.

Its result equals a simulation in which the same sites are absent in the same rounds.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedbilevel.flare.provisioning import provision_kits
from fedbilevel.flare.rehearsals import pids, start, stop
from fedbilevel.tracking.records import read_records
from tests.false_clock import false_clock
from tests.federation import pulled
from tests.federation.experiments import (
    ENVIRONMENT,
    SITES,
    federating,
    written,
)
from tests.federation.live import Live, assert_ends_as_simulated

ROUNDS = 1500
TIMEOUT = 15.0
"""An exchange takes 0.6 s here, and on a machine at load 10 less than 10 s."""
SETTINGS = f"""
rounds = {ROUNDS}
evaluation.every = 1
checkpoints.every = 5
federation.timeout = {TIMEOUT}
"""
pytestmark = pytest.mark.nightly
LATE = "did not answer in time"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def clock(home: Path) -> tuple[Path, dict[str, str]]:
    """The file with the offset of the clocks, and the environment that applies it."""
    return false_clock(home)


@pytest.fixture(scope="module")
def live(home: Path, clock: tuple[Path, dict[str, str]]) -> Iterator[Live]:
    file = written(home, "LocalBSGM", SETTINGS)
    directory = home / "runs" / "LocalBSGM-federated"
    pace = home / "pace"
    pace.write_text("0.5")
    ours = {pulled.PACE: str(pace), **clock[1]}
    kits = provision_kits(directory / "kits", SITES)
    with pytest.MonkeyPatch.context() as environment:
        # It also applies to sites that this test starts.
        for name, value in {**ENVIRONMENT, **ours}.items():
            environment.setenv(name, value)
        try:
            with federating(file, **ours) as command:
                created_files = Live(command, directory, kits, pace)
                command.until(lambda: (directory / "run").exists())
                command.until(lambda: len(created_files.exchanges()) > 6)
                yield created_files
        finally:
            stop(kits.server, *kits.sites.values())


def goes_on(live: Live, harm: Callable[[], None]) -> None:
    """Cause a fault; check that another job resumes from the last checkpoint."""
    jobs, checkpoint = live.jobs, live.checkpoint()
    harm()
    before = live.exchanges()
    live.command.until(lambda: live.jobs > jobs)
    # A repeated round takes another time.
    live.command.until(lambda: len(live.exchanges()) > len(before))
    after = live.exchanges()
    same = (old == new for old, new in zip(before, after, strict=False))
    began = next((number for number, item in enumerate(same) if not item), len(before))
    assert began >= checkpoint
    assert live.jobs == jobs + 1
    live.until_all_count()


def test_a_killed_computation_is_missed_and_back_in_the_same_job(live):
    jobs, begun = live.jobs, len(live.exchanges())
    live.kill_computation("east")
    live.command.until(
        lambda: any(exchange["excluded"] for exchange in live.exchanges()[begun:])
    )
    live.until_all_count()
    reasons = [
        exchange["excluded"].get("east", "") for exchange in live.exchanges()[begun:]
    ]
    assert any("was killed (signal 9" in reason for reason in reasons), reasons
    assert live.jobs == jobs


def test_a_slow_site_is_contacted_less_and_less_until_it_is_fast(live):
    jobs, begun = live.jobs, len(live.exchanges())
    (computation,) = live.processes(live.kits.sites["south"], "worker.child")

    def misses() -> list[int]:
        result = live.exchanges()[begun:]
        return [item["round_number"] for item in result if "south" in item["excluded"]]

    computation.suspend()
    live.command.until(lambda: len(misses()) >= 3)
    computation.resume()
    live.until_all_count()
    first, second, third, *_ = misses()
    assert (second - first, third - second) == (1, 2)
    waited = live.exchanges()[third]
    assert waited["excluded"] == {"south": LATE}
    assert TIMEOUT <= waited["seconds"] < 2 * TIMEOUT
    assert live.jobs == jobs


def test_a_killed_site_is_missed_and_back_in_another_job(live):
    site = live.kits.sites["west"]
    begun = len(live.exchanges())

    def kill() -> None:
        for pid in pids(site):
            with suppress(ProcessLookupError):  # The process has ended meanwhile.
                os.kill(pid, signal.SIGKILL)
        live.command.until(lambda: "west" in live.exchanges()[-1]["excluded"])
        start(site)

    goes_on(live, kill)
    missed = [
        exchange
        for exchange in live.exchanges()[begun:]
        if "west" in exchange["excluded"]
    ]
    assert missed
    assert "west can participate again" in live.command.output


def test_a_killed_worker_leaves_the_job_to_the_others_until_it_is_let_back(live):
    (worker,) = live.processes(live.kits.sites["east"], "worker_process")
    begun = len(live.exchanges())
    goes_on(live, worker.kill)
    reasons = [
        exchange["excluded"].get("east") for exchange in live.exchanges()[begun:]
    ]
    assert "its worker process ended" in reasons
    assert (
        "east: its worker process ended; suspended for 30 seconds"
        in live.command.output
    )
    assert "east can participate again" in live.command.output


def test_a_killed_server_is_started_again_and_another_job_goes_on(live):
    server = live.kits.server

    def kill() -> None:
        for process in live.processes(server, "nvflare.private.fed.app.server"):
            process.kill()

    goes_on(live, kill)


def test_a_clock_that_jumps_changes_nothing(live, clock):
    jobs = live.jobs
    for seconds in (86_400, -10_800, 0):
        begun = len(live.exchanges())
        clock[0].write_text(str(seconds))
        live.command.until(lambda begun=begun: len(live.exchanges()) >= begun + 4)
        assert all(not exchange["excluded"] for exchange in live.exchanges()[begun:])
    assert live.jobs == jobs


def test_the_run_ends_where_one_does_with_the_same_sites_absent(live):
    live.pace.unlink()
    live.command.until_its_end()
    lines = (live.directory / "exchanges.jsonl").read_text().splitlines()
    exchanges = [json.loads(line) for line in lines]
    # An exchange with a late site lasted until the timeout.
    late = [exchange for exchange in exchanges if LATE in exchange["excluded"].values()]
    assert late
    assert all(item["seconds"] >= TIMEOUT for item in late)
    counted = [
        tuple(SITES.index(site) for site in exchange["counted"])
        for exchange in exchanges
    ]
    assert len(counted) == ROUNDS
    # Rarely fewer: noise may move an honest upload beyond the distance limit.
    assert {3, 4} <= set(map(len, counted))
    assert_ends_as_simulated(live.directory, counted)


def test_records_at_the_end_are_the_servers(live):
    """The records are equal although jobs went back to checkpoints."""
    here, there = (item / "metrics.jsonl" for item in (live.directory, live.home))
    assert here.read_text() == there.read_text()
    assert [read_record.rounds for read_record in read_records(live.directory)] == list(
        range(ROUNDS + 1)
    )


def test_no_process_is_left(live):
    kits = live.kits.server, *live.kits.sites.values()
    assert [pids(kit) for kit in kits] == [[]] * len(kits)
