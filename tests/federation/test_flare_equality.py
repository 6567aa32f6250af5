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
"""Bytes of each process, by how many exchanges there had been."""


class Done(NamedTuple):
    """Runs that came to their end.

    Attributes:
        directories: by algorithm.
        said: on standard error, by algorithm.
        growth: of the processes of the longest run.
    """

    directories: dict[str, Path]
    said: dict[str, str]
    growth: Growth


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    home = tmp_path_factory.mktemp("equality")
    with pytest.MonkeyPatch.context() as environment:
        # What the software keeps of each message for 4 seconds is of few at this pace.
        pace = home / "pace"
        pace.write_text("0.05")
        for name, value in {**ENVIRONMENT, pulled.PACE: str(pace)}.items():
            environment.setenv(name, value)
        with rehearsal(home / "kits", SITES) as kits:
            found = carried_out(home, kits)
            pace.unlink()
            yield found
            left = [
                one for kit in all_of(kits) for one in command_lines(pids(kit)).values()
            ]
            jobs = "runner_process", "worker_process", "worker.child"
            assert not [one for one in left if any(word in one for word in jobs)]


def all_of(kits: Kits) -> list[Path]:
    return [kits.server, *kits.sites.values()]


def carried_out(home: Path, kits: Kits) -> Done:
    """Carry all runs out at the same time."""
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
            assert command.process.wait(timeout=HANG) == 0, (name, command.said)
    directories = {name: directory_of(file.parent) for name, file in files.items()}
    said = {name: command.said for name, command in commands.items()}
    return Done(directories, said, growth)


def directory_of(home: Path) -> Path:
    """Return the directory of the run in a directory."""
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
        found = {name: memory([pid]) for name, pid in processes.items()}
        # The last look is the one before the first of them ends.
        if all(found.values()):
            growth[count] = found
    return growth


def exchanges_of(kits: Kits, home: Path) -> int:
    for named in home.glob("runs/*/run"):
        file = home_in(kits.server, named.read_text()) / "exchanges.jsonl"
        if file.exists():
            return file.read_text().count("\n")
    return 0


def processes_of(kits: Kits, algorithm: str) -> dict[str, int]:
    """Return those of the job with an algorithm: at each site two, one computes."""
    (job,) = {
        file.parents[2].name
        for file in kits.server.glob("*/app_server/config/experiment.toml")
        if f'name = "{algorithm}"' in file.read_text()
    }
    found = {}
    for kit in all_of(kits):
        for pid, words in command_lines(pids(kit)).items():
            computes = " computes" if "worker.child" in words else ""
            if job in words:
                found[f"{kit.name}{computes}"] = pid
    assert len(found) == 1 + 2 * len(SITES)
    return found


@pytest.mark.parametrize("algorithm", ROUNDS)
def test_every_round_of_a_job_is_that_of_the_simulation(done, algorithm, tmp_path):
    directory = done.directories[algorithm]
    experiment = read_experiment(directory / "experiment.toml")
    with closing(run_experiment(experiment, tmp_path, resume=False)) as steps:
        for _ in steps:
            pass
    for found, wanted in zip(measured(directory), measured(tmp_path), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
    found, wanted = (np.load(one / "solution.npz") for one in (directory, tmp_path))
    assert set(found) == {"x", "y"}
    for name in found:
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-10)


def measured(directory: Path) -> list[tuple[float, float]]:
    records = read_records(directory)
    return [(one.figures["x"], one.figures["y"]) for one in records]


@pytest.mark.parametrize(
    ("algorithm", "exchanges"),
    [("LocalBSGM", 1), ("LocalBSGVRM", 1), ("FedNest", 9), ("auto", 1)],
)
def test_all_sites_counted_in_every_exchange(done, algorithm, exchanges):
    lines = (done.directories[algorithm] / "exchanges.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert len(found) == exchanges * ROUNDS[algorithm]
    assert all(one["counted"] == list(SITES) for one in found)
    assert not any(one["left_out"] or one["skipped"] for one in found)
    assert done.said[algorithm].count("begins") == 1


def test_no_process_grows_in_500_exchanges(done):
    assert max(done.growth) > SOAK - 50
    # What waits to be collected comes and goes: the most is what counts.
    first = [found for count, found in done.growth.items() if count < 100]
    later = [found for count, found in done.growth.items() if count >= 100]
    for name in first[0]:
        before, after = (max(one[name] for one in some) for some in (first, later))
        assert after < 1.05 * before, name
