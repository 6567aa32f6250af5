"""`fedbilevel federate` as a user runs it, from the first round to the last."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbilevel import FedBiO
from fedbilevel.__main__ import main
from fedbilevel.commands.federate import _match_run, _new_exclusions, _print_absences
from fedbilevel.deployment.exclusion_notices import Exclusion
from fedbilevel.experiments.run_directory.layout import EXCHANGES, RUN
from fedbilevel.experiments.run_directory.runs import keep
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import Exchange
from fedbilevel.flare.provisioning import Kits, provision_kits
from fedbilevel.flare.rehearsals import pids, rehearsal, stop
from fedbilevel.tracking.records import Record, read_records
from tests.federation.experiments import ENVIRONMENT, federating
from tests.waiting import HANG

ROUNDS = 120
CLEAN = f"""
rounds = {ROUNDS}
[problem]
name = "Cleaning"
[data]
train_size = 400
validation_size = 200
label_noise = 0.3
[partition]
devices = 4
[algorithm]
name = "LocalBSGM"
learning_rate = 0.1
upper_mixing = 5.0
lower_mixing = 5.0
local_steps = 3
batch_size = 16
hypergradient = {{ name = "NeumannSeries", terms = 5, scale = 0.3 }}
[evaluation]
every = 10
"""
SITES = [f"site-{number}" for number in range(1, 5)]
WRONG = f"""
rounds = 3
federation.sites = {SITES}
[problem]
name = "CustomProblem"
file = "wrong.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.1
"""
LOSSES = """
import numpy as np
from fedbilevel import BilevelProblem, LocalExamples
from fedbilevel.problems import Model

def loss(x, y, batch):
    return ((y - x * batch) ** 2).mean()

def examples(site):
    wide = (2,) if site == "site-3" else ()
    return LocalExamples(np.ones((4, *wide)), np.ones(6))
"""
MODEL = """
def model():
    return Model(BilevelProblem(loss, loss), 3.0, 0.0, {}, examples("site-1"))
"""


class Outputs(NamedTuple):
    """The results of the commands.

    Attributes:
        directory: run directory.
        interrupted: output of the interrupted command.
        code: exit code of that command.
        left: processes that it left running.
        before: the server's log of exchanges by then.
        output: output of the same command, given again.
        mistaken: output of a command whose examples have the wrong shape.
    """

    directory: Path
    interrupted: str
    code: int
    left: list[int]
    before: list[str]
    output: str
    mistaken: str


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outputs]:
    home = tmp_path_factory.mktemp("federate")
    clean, wrong = home / "clean.toml", home / "wrong.toml"
    clean.write_text(CLEAN)
    wrong.write_text(WRONG)
    (home / "wrong.py").write_text(LOSSES + MODEL)
    directory = home / "runs" / "clean-federated"
    kits = provision_kits(directory / "kits", SITES)
    try:
        with federating(clean) as first:
            first.until(lambda: bool(list(read_records(directory))))
            first.process.send_signal(signal.SIGINT)
            code = first.process.wait(timeout=HANG)
        left, before = processes_of(kits), lines(directory)
        interrupted = first.output
        with federating(clean) as second:
            assert second.process.wait(timeout=HANG) == 0, second.output
        with (
            rehearsal(directory / "kits", SITES),
            federating(wrong, "--federation.kit", str(kits.lead)) as third,
        ):
            assert third.process.wait(timeout=HANG) == 2, third.output
        yield Outputs(
            directory, interrupted, code, left, before, second.output, third.output
        )
    finally:
        stop(kits.server, *kits.sites.values())


def processes_of(kits: Kits) -> list[int]:
    return [pid for kit in (kits.server, *kits.sites.values()) for pid in pids(kit)]


def lines(directory: Path) -> list[str]:
    return (directory / "exchanges.jsonl").read_text().splitlines()


def last_of(directory: Path) -> Record:
    *_, last = read_records(directory)
    return last


@pytest.mark.nightly
def test_one_interruption_ends_it_after_a_round_and_leaves_no_process(commands):
    assert commands.code == 130
    assert (
        "Stopping after this round, in 5 seconds at the latest; press Ctrl-C again to "
        "stop now" in commands.interrupted
    )
    assert (
        f"Stopped after {len(commands.before)} of {ROUNDS} rounds"
        in commands.interrupted
    )
    assert "The same command resumes the run" in commands.interrupted
    assert commands.left == []


@pytest.mark.nightly
def test_the_same_command_resumes_the_run(commands):
    assert 0 < len(commands.before) < ROUNDS
    after = lines(commands.directory)
    # A repeated round takes another time.
    assert after[: len(commands.before)] == commands.before
    assert len(after) == ROUNDS
    assert all(json.loads(line)["counted"] == SITES for line in after)


@pytest.mark.nightly
def test_it_reports_its_progress(commands):
    begun = f"round 0 of {ROUNDS} | 0 samples drawn, 0B sent | accuracy"
    assert begun in commands.interrupted
    assert f"round {ROUNDS} of {ROUNDS} | " in commands.output
    for text in (commands.interrupted, commands.output):
        assert text.startswith("Starting a server and sites on this machine …\n")
        assert "Cleaning by LocalBSGM, in runs/clean-federated\n" in text
        assert "A job with site-1, site-2, site-3, site-4 starts.\n" in text


@pytest.mark.nightly
def test_its_result_equals_a_simulation_of_the_same_file(commands, tmp_path):
    shutil.copy(commands.directory.parents[1] / "clean.toml", tmp_path)
    subprocess.run(
        [sys.executable, "-m", "fedbilevel", "run", "clean.toml"],
        check=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
    )
    result, wanted = (
        last_of(directory)
        for directory in (commands.directory, tmp_path / "runs" / "clean")
    )
    assert result.rounds == wanted.rounds == ROUNDS
    assert result.costs == wanted.costs
    assert result.metrics["accuracy"] == wanted.metrics["accuracy"] > 0.8


EXCHANGES_SEEN = [
    Exchange(0, 0, 0.1, ["east", "west"], {}, [], 9, 9),
    Exchange(1, 0, 0.1, ["west"], {"east": "refused: no more"}, [], 9, 9),
    Exchange(2, 0, 0.1, ["west"], {}, ["east"], 9, 9),
]


def test_an_excluded_site_is_named_once_and_counted_at_the_end(tmp_path, capsys):
    named: set[Exclusion] = set()
    exclusions = [Exclusion(1, "east", "refused: no more")]
    output = [
        str(item) for _ in range(2) for item in _new_exclusions(exclusions, named)
    ]
    assert output == ["Round 1: east is excluded: refused: no more"]
    lines = [f"{seen.line}\n" for seen in EXCHANGES_SEEN]
    (tmp_path / EXCHANGES).write_text("".join(lines))
    _print_absences(tmp_path)
    assert capsys.readouterr().err == (
        "east was excluded from 2 of 3 exchanges; last reason: refused: no more\n"
    )


def test_a_run_that_was_refused_is_no_obstacle_to_another(tmp_path):
    request = Experiment(FedBiO(0.1))
    keep(request, tmp_path)
    (tmp_path / RUN).write_text("first")
    other = replace(request, seed=7)
    assert _match_run(other, tmp_path) == other
    assert not (tmp_path / RUN).exists()


@pytest.mark.nightly
def test_a_finished_run_is_not_begun_again(commands, capsys):
    file = commands.directory.parents[1] / "clean.toml"
    assert main(["federate", str(file)]) == 0
    assert "clean-federated is finished after" in capsys.readouterr().err


@pytest.mark.nightly
def test_other_settings_are_another_run(commands, capsys):
    file = commands.directory.parents[1] / "clean.toml"
    assert main(["federate", str(file), "--seed", "3", "--rounds", "200"]) == 2
    assert "was started with other values of seed. Restore" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_federated_run_is_not_resumed_as_a_simulation(commands, capsys):
    assert main(["resume", str(commands.directory)]) == 2
    assert "is the run directory of a federation" in capsys.readouterr().err


def test_a_quorum_above_the_number_of_sites_is_refused(tmp_path, capsys):
    (tmp_path / "clean.toml").write_text(CLEAN)
    assert main(["federate", f"{tmp_path}/clean.toml", "--federation.quorum", "7"]) == 2
    output = capsys.readouterr().err
    assert "federation.quorum is 7, but there are 4 sites" in output


@pytest.mark.nightly
def test_a_site_with_examples_of_another_form_is_named_after_one_job(commands):
    *_, last = commands.mistaken.splitlines()
    assert commands.mistaken.count(" starts.\n") == 1
    assert last == (
        "fedbilevel federate: site-3: upper examples are float64[2], expected "
        'float64[]. Fix what `examples("site-3")` returns.'
    )


def test_a_problem_without_model_is_refused_before_anything_starts(tmp_path, capsys):
    (tmp_path / "wrong.toml").write_text(WRONG)
    (tmp_path / "wrong.py").write_text(LOSSES)
    assert main(["federate", str(tmp_path / "wrong.toml")]) == 2
    assert capsys.readouterr().err == (
        f"fedbilevel federate: problem.file: {tmp_path / 'wrong.py'} has no function "
        "model(); add it, as in the example that fedbilevel new writes.\n"
    )


def test_a_directory_that_is_not_a_kit_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clean.toml").write_text(CLEAN)
    assert main(["federate", "clean.toml", "--federation.kit", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        f"fedbilevel federate: {tmp_path / 'nowhere'} is not a startup kit of an "
        "administrator: startup/fed_admin.json is missing. Give the directory that "
        "nvflare provision created for an administrator.\n"
    )
