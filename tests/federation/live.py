"""A run of a federation on its way: what its server writes, and whose processes run."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from fedbilevel import run
from fedbilevel.experiments.build import build_task
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.flare.provisioning import Kits
from fedbilevel.flare.rehearsals import pids
from tests.federation.experiments import Command, home_in
from tests.federation.processes import command_lines


class Live(NamedTuple):
    """A run on its way.

    Attributes:
        command: that follows it.
        directory: of the run.
        kits: of the server and the sites.
        pace: the file that makes rounds slow.
    """

    command: Command
    directory: Path
    kits: Kits
    pace: Path

    @property
    def home(self) -> Path:
        """The directory of the run at the server."""
        return home_in(self.kits.server, (self.directory / "run").read_text())

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
                one["counted"] == list(self.kits.sites)
                for one in self.exchanges()[begun:]
            )

        self.command.until(all_count)

    def kill_computation(self, site: str) -> None:
        """Kill what computes at a site while it has something to do."""
        (computation,) = self.processes(self.kits.sites[site], "worker.child")
        begun, began = len(self.exchanges()), time.monotonic()
        self.command.until(lambda: len(self.exchanges()) >= begun + 3)
        # Stopped first. In the time that three rounds take, whatever the load, it is
        # asked for something that it does not answer.
        computation.suspend()
        time.sleep(time.monotonic() - began)
        computation.kill()


def assert_ends_as_simulated(directory: Path, counted: Sequence[Sequence[int]]) -> None:
    """Hold a finished run to a simulation in which the same devices took part.

    Args:
        directory: of the run.
        counted: the devices whose uploads counted, for every round.
    """
    experiment = read_experiment(directory / "experiment.toml")
    task = build_task(experiment)
    *_, last = run(
        task.problem,
        experiment.federated_algorithm,
        task.devices,
        task.x,
        task.y,
        rounds=experiment.rounds,
        participation=Present(tuple(map(tuple, counted))),
    )
    found = np.load(directory / "solution.npz")
    np.testing.assert_allclose(found["x"], last.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found["y"], last.y, rtol=0, atol=1e-10)


@dataclass(frozen=True)
class Present:
    """The devices that counted in each round."""

    counted: tuple[tuple[int, ...], ...]

    def __call__(self, seed: int, round_number: int, device_count: int) -> np.ndarray:
        return np.array(self.counted[round_number])
