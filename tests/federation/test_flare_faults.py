"""One run of a federation outlives all that is done to its processes, in this order.

At its end it is where a run would be from which the same sites had been absent in the
same rounds.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from fedbilevel import run
from fedbilevel.experiments.building import task_of
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.flare.provisioning import Kits, provisioned
from fedbilevel.flare.rehearsal import pids, start, stop
from tests.false_clock import false_clock
from tests.federation import pulled
from tests.federation.experiments import (
    ENVIRONMENT,
    SITES,
    Command,
    federating,
    home_in,
    written,
)
from tests.federation.processes import command_lines

ROUNDS = 150
TIMEOUT = 2.0
SETTINGS = f"""
rounds = {ROUNDS}
evaluation.every = 1
checkpoints.every = 5
federation.timeout = {TIMEOUT}
"""
LATE = "did not answer in time"


class Live(NamedTuple):
    """A run on its way.

    Attributes:
        command: that follows it.
        folder: of the run.
        kits: of the server and the sites.
        pace: the file that makes rounds slow.
        clock: the file with the seconds by which clocks are off.
    """

    command: Command
    folder: Path
    kits: Kits
    pace: Path
    clock: Path

    @property
    def home(self) -> Path:
        """The folder of the run at the server."""
        return home_in(self.kits.server, (self.folder / "run").read_text())

    @property
    def jobs(self) -> int:
        """How many have begun."""
        return self.command.said.count(" begins\n")

    def exchanges(self) -> list[dict[str, Any]]:
        """Return what the server has written down, one a round."""
        file = self.home / "exchanges.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def checkpoint(self) -> int:
        """Return how many rounds the newest checkpoint holds."""
        found = (self.home / "checkpoints").glob("round_*/commit_success.txt")
        return max(int(file.parent.name.removeprefix("round_")) for file in found)

    def processes(self, kit: Path, words: str) -> list[psutil.Process]:
        """Return the processes of a kit in whose command line these words are."""
        found = command_lines(pids(kit)).items()
        return [psutil.Process(pid) for pid, line in found if words in line]

    def until_all_count(self) -> None:
        """Wait for a round in which all sites take part."""
        begun = len(self.exchanges())

        def all_count() -> bool:
            return any(
                one["counted"] == list(SITES) for one in self.exchanges()[begun:]
            )

        self.command.until(all_count)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("faults")
    file = written(home, "LocalBSGM", SETTINGS)
    folder = home / "runs" / "LocalBSGM-federated"
    pace = home / "pace"
    pace.write_text("0.5")
    clock, believing = false_clock(home)
    ours = {pulled.PACE: str(pace), **believing}
    kits = provisioned(folder / "kits", SITES)
    with pytest.MonkeyPatch.context() as environment:
        # Of sites that are started from here too.
        for name, value in {**ENVIRONMENT, **ours}.items():
            environment.setenv(name, value)
        try:
            with federating(file, **ours) as command:
                made = Live(command, folder, kits, pace, clock)
                command.until(lambda: (folder / "run").exists())
                command.until(lambda: len(made.exchanges()) > 6)
                yield made
        finally:
            stop(kits.server, *kits.sites.values())


def goes_on(live: Live, harm: Callable[[], None]) -> None:
    """Do harm, and see another job go on from no earlier than the last checkpoint."""
    jobs, checkpoint = live.jobs, live.checkpoint()
    harm()
    before = live.exchanges()
    live.command.until(lambda: live.jobs > jobs)
    # A round that is made again takes another time.
    live.command.until(lambda: len(live.exchanges()) > len(before))
    after = live.exchanges()
    same = (old == new for old, new in zip(before, after, strict=False))
    began = next((number for number, one in enumerate(same) if not one), len(before))
    assert began >= checkpoint
    assert live.jobs == jobs + 1
    live.until_all_count()


def test_a_killed_computation_is_missed_and_back_in_the_same_job(live):
    jobs, begun = live.jobs, len(live.exchanges())
    (computation,) = live.processes(live.kits.sites["east"], "worker_child")
    # Stopped first, so that it is killed while it has something to do.
    computation.suspend()
    time.sleep(1.0)
    computation.kill()
    live.command.until(lambda: any(one["left_out"] for one in live.exchanges()[begun:]))
    live.until_all_count()
    reasons = [one["left_out"].get("east", "") for one in live.exchanges()[begun:]]
    assert any("was killed (signal 9" in reason for reason in reasons), reasons
    assert live.jobs == jobs


def test_a_slow_site_is_asked_less_and_less_until_it_is_fast(live):
    jobs, begun = live.jobs, len(live.exchanges())
    (computation,) = live.processes(live.kits.sites["south"], "worker_child")

    def misses() -> list[int]:
        found = live.exchanges()[begun:]
        return [one["round_number"] for one in found if "south" in one["left_out"]]

    computation.suspend()
    live.command.until(lambda: len(misses()) >= 3)
    computation.resume()
    live.until_all_count()
    first, second, third, *_ = misses()
    assert (second - first, third - second) == (1, 2)
    waited = live.exchanges()[third]
    assert waited["left_out"] == {"south": LATE}
    assert TIMEOUT <= waited["seconds"] < 2 * TIMEOUT
    assert live.jobs == jobs


def test_a_killed_site_is_missed_and_back_in_another_job(live):
    site = live.kits.sites["west"]
    begun = len(live.exchanges())

    def kill() -> None:
        for pid in pids(site):
            with suppress(ProcessLookupError):  # It has ended meanwhile.
                os.kill(pid, signal.SIGKILL)
        live.command.until(lambda: "west" in live.exchanges()[-1]["left_out"])
        start(site)

    goes_on(live, kill)
    missed = [one for one in live.exchanges()[begun:] if "west" in one["left_out"]]
    assert missed
    assert "west can take part again" in live.command.said


def test_a_killed_worker_ends_the_job_and_another_goes_on(live):
    (worker,) = live.processes(live.kits.sites["east"], "worker_process")
    goes_on(live, worker.kill)


def test_a_killed_server_is_started_again_and_another_job_goes_on(live):
    server = live.kits.server

    def kill() -> None:
        for process in live.processes(server, "nvflare.private.fed.app.server"):
            process.kill()

    goes_on(live, kill)


def test_a_clock_that_jumps_changes_nothing(live):
    jobs = live.jobs
    for seconds in (86_400, -10_800, 0):
        begun = len(live.exchanges())
        live.clock.write_text(str(seconds))
        live.command.until(lambda begun=begun: len(live.exchanges()) >= begun + 4)
        assert all(not one["left_out"] for one in live.exchanges()[begun:])
    assert live.jobs == jobs


def test_the_run_ends_where_one_does_with_the_same_sites_absent(live):
    live.pace.unlink()
    live.command.until_its_end()
    lines = (live.folder / "exchanges.jsonl").read_text().splitlines()
    exchanges = [json.loads(line) for line in lines]
    # Who is said to have been late has been waited for.
    late = [one for one in exchanges if LATE in one["left_out"].values()]
    assert late
    assert all(one["seconds"] >= TIMEOUT for one in late)
    counted = [tuple(SITES.index(site) for site in one["counted"]) for one in exchanges]
    assert len(counted) == ROUNDS
    assert set(map(len, counted)) == {3, 4}
    experiment = read_experiment(live.folder / "experiment.toml")
    task = task_of(experiment)
    *_, last = run(
        task.problem,
        experiment.algorithm,
        task.devices,
        task.x,
        task.y,
        rounds=ROUNDS,
        participation=Present(counted),
    )
    found = np.load(live.folder / "learnt.npz")
    np.testing.assert_allclose(found["x"], last.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found["y"], last.y, rtol=0, atol=1e-10)


def test_no_process_is_left(live):
    kits = live.kits.server, *live.kits.sites.values()
    assert [pids(kit) for kit in kits] == [[]] * len(kits)


@dataclass(frozen=True)
class Present:
    """The devices that counted in each round."""

    counted: list[tuple[int, ...]]

    def __call__(self, seed: int, round_number: int, device_count: int) -> np.ndarray:
        return np.array(self.counted[round_number])
