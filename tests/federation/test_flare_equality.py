"""Jobs of NVIDIA FLARE follow the simulation, and their processes do not grow."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pytest

from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run import run_experiment
from fedbilevel.flare.provisioning import Kits
from fedbilevel.flare.rehearsals import pids, rehearsal
from fedbilevel.tracking.records import read_records
from tests.federation import pulled
from tests.federation.experiments import (
    ENVIRONMENT,
    SITES,
    Command,
    federating,
    home_in,
    written,
)
from tests.federation.processes import command_lines, memory
from tests.waiting import HANG

pytestmark = pytest.mark.nightly
SOAK = 500
ADAM = 'server_optimiser = {name = "adam", learning_rate = 0.05}'
ROUNDS = {"LocalBSGM": SOAK, "LocalBSGVRM": 8, "FedNest": 6, "auto": 8}


Growth: TypeAlias = dict[int, dict[str, int]]
"""Memory of each process in bytes, by number of exchanges."""


class Runs(NamedTuple):
    """Finished runs.

    Attributes:
        directories: run directories by algorithm.
        output: output on standard error by algorithm.
        growth: memory of the processes of the longest run.
    """

    directories: dict[str, Path]
    output: dict[str, str]
    growth: Growth


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    home = tmp_path_factory.mktemp("equality")
    with pytest.MonkeyPatch.context() as environment:
        # NVIDIA FLARE keeps data of each message for 4 s: few messages at this pace.
        pace = home / "pace"
        pace.write_text("0.05")
        for name, value in {**ENVIRONMENT, pulled.PACE: str(pace)}.items():
            environment.setenv(name, value)
        with rehearsal(home / "kits", SITES) as kits:
            result = carried_out(home, kits)
            pace.unlink()
            yield result
            left = [
                command_line
                for kit in all_of(kits)
                for command_line in command_lines(pids(kit)).values()
            ]
            jobs = "runner_process", "worker_process", "worker.child"
            assert not [item for item in left if any(token in item for token in jobs)]


def all_of(kits: Kits) -> list[Path]:
    return [kits.server, *kits.sites.values()]


def carried_out(home: Path, kits: Kits) -> Runs:
    """Run all algorithms at the same time."""
    files = {
        name: written(
            home / name,
            name,
            f"rounds = {rounds}\nevaluation.every = 1\n"
            f"weight_by_size = {str(name == 'LocalBSGVRM').lower()}\n"
            "size_limit = 1000\n" + (ADAM if name == "FedNest" else ""),
        )
        for name, rounds in ROUNDS.items()
    }
    with ExitStack() as stack:
        commands = {
            name: stack.enter_context(
                federating(file, "--federation.kit", str(kits.lead))
            )
            for name, file in files.items()
        }
        growth = watched(kits, files["LocalBSGM"].parent, commands["LocalBSGM"])
        for name, command in commands.items():
            assert command.process.wait(timeout=HANG) == 0, (name, command.output)
    directories = {name: directory_of(file.parent) for name, file in files.items()}
    output = {name: command.output for name, command in commands.items()}
    return Runs(directories, output, growth)


def directory_of(home: Path) -> Path:
    """Return the only run directory below a directory."""
    (directory,) = (home / "runs").iterdir()
    return directory


def watched(kits: Kits, home: Path, command: Command) -> Growth:
    """Return the memory of a run's processes from its 50th exchange on."""
    growth: Growth = {}
    processes: dict[str, int] = {}
    while command.process.poll() is None:
        time.sleep(0.5)
        count = exchanges_of(kits, home)
        if count < 50:
            continue
        processes = processes or processes_of(kits, "LocalBSGM")
        result = {name: memory([pid]) for name, pid in processes.items()}
        # The last sample is the one before the first process ends.
        if all(result.values()):
            growth[count] = result
    return growth


def exchanges_of(kits: Kits, home: Path) -> int:
    for named in home.glob("runs/*/run"):
        file = home_in(kits.server, named.read_text()) / "exchanges.jsonl"
        if file.exists():
            return file.read_text().count("\n")
    return 0


def processes_of(kits: Kits, algorithm: str) -> dict[str, int]:
    """Return the processes of an algorithm's job: two at each site."""
    (job,) = {
        file.parents[2].name
        for file in kits.server.glob("*/app_server/config/experiment.toml")
        if f'name = "{algorithm}"' in file.read_text()
    }
    result = {}
    for kit in all_of(kits):
        for pid, text in command_lines(pids(kit)).items():
            computes = " computes" if "worker.child" in text else ""
            if job in text:
                result[f"{kit.name}{computes}"] = pid
    assert len(result) == 1 + 2 * len(SITES)
    return result


@pytest.mark.parametrize("algorithm", ROUNDS)
def test_every_round_of_a_job_is_that_of_the_simulation(runs, algorithm, tmp_path):
    directory = runs.directories[algorithm]
    experiment = read_experiment(directory / "experiment.toml")
    with closing(run_experiment(experiment, tmp_path, resume=False)) as steps:
        for _ in steps:
            pass
    for result, wanted in zip(measured(directory), measured(tmp_path), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-10)
    result, wanted = (np.load(item / "solution.npz") for item in (directory, tmp_path))
    assert set(result) == {"x", "y"}
    for name in result:
        np.testing.assert_allclose(result[name], wanted[name], rtol=0, atol=1e-10)


def measured(directory: Path) -> list[tuple[float, float]]:
    records = read_records(directory)
    return [(record.metrics["x"], record.metrics["y"]) for record in records]


@pytest.mark.parametrize(
    ("algorithm", "exchanges"),
    [("LocalBSGM", 1), ("LocalBSGVRM", 1), ("FedNest", 9), ("auto", 1)],
)
def test_all_sites_counted_in_every_exchange(runs, algorithm, exchanges):
    lines = (runs.directories[algorithm] / "exchanges.jsonl").read_text().splitlines()
    result = [json.loads(line) for line in lines]
    assert len(result) == exchanges * ROUNDS[algorithm]
    assert all(item["counted"] == list(SITES) for item in result)
    assert not any(item["excluded"] or item["skipped"] for item in result)
    assert runs.output[algorithm].count("A job with") == 1


def test_no_process_grows_in_500_exchanges(runs):
    assert max(runs.growth) > SOAK - 50
    # Uncollected garbage varies, so compare the maxima.
    first = [result for count, result in runs.growth.items() if count < 100]
    later = [result for count, result in runs.growth.items() if count >= 100]
    for name in first[0]:
        before, after = (max(item[name] for item in some) for some in (first, later))
        assert after < 1.05 * before, name
