"""A running federation: the files of its server, and its processes."""

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
    """A running federation.

    Attributes:
        command: command that supervises it.
        directory: run directory of the submitter.
        kits: kits of the server and the sites.
        pace: file with the seconds of each measurement.
    """

    command: Command
    directory: Path
    kits: Kits
    pace: Path

    @property
    def home(self) -> Path:
        """The run directory at the server."""
        return home_in(self.kits.server, (self.directory / "run").read_text())

    @property
    def jobs(self) -> int:
        """The number of jobs that have begun."""
        return self.command.output.count(" starts.\n")

    def exchanges(self) -> list[dict[str, Any]]:
        """Return the server's log of exchanges."""
        file = self.home / "exchanges.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def checkpoint(self) -> int:
        """Return the number of rounds of the newest checkpoint."""
        result = (self.home / "checkpoints").glob("round_*/commit_success.txt")
        return max(int(file.parent.name.removeprefix("round_")) for file in result)

    def processes(self, kit: Path, text: str) -> list[psutil.Process]:
        """Return the processes of a kit whose command line contains a text."""
        result = command_lines(pids(kit)).items()
        return [psutil.Process(pid) for pid, line in result if text in line]

    def until_all_count(self) -> None:
        """Wait for a round in which all sites participate."""
        begun = len(self.exchanges())

        def all_count() -> bool:
            return any(
                exchange["counted"] == list(self.kits.sites)
                for exchange in self.exchanges()[begun:]
            )

        self.command.until(all_count)

    def kill_computation(self, site: str) -> None:
        """Kill the worker of a site while it has a task."""
        (computation,) = self.processes(self.kits.sites[site], "worker.child")
        begun, began = len(self.exchanges()), time.monotonic()
        self.command.until(lambda: len(self.exchanges()) >= begun + 3)
        # Suspended first: in the time of three rounds, at any load, it gets a task that
        # it does not answer.
        computation.suspend()
        time.sleep(time.monotonic() - began)
        computation.kill()


def assert_ends_as_simulated(directory: Path, counted: Sequence[Sequence[int]]) -> None:
    """Compare a finished run with a simulation with the same participants.

    Args:
        directory: run directory.
        counted: devices whose uploads counted, for every round.
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
    result = np.load(directory / "solution.npz")
    np.testing.assert_allclose(result["x"], last.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result["y"], last.y, rtol=0, atol=1e-10)


@dataclass(frozen=True)
class Present:
    """The devices whose uploads count in each round."""

    counted: tuple[tuple[int, ...], ...]

    def __call__(self, seed: int, round_number: int, device_count: int) -> np.ndarray:
        return np.array(self.counted[round_number])
