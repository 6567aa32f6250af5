"""Runs from a file: progress, interruption, resumption, and files."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbilevel.commands.interruption import interruption
from fedbilevel.experiments.files.read import read_experiment
from tests.commands.typing_in import ENVIRONMENT, QUICK, fedbilevel, in_terminal
from tests.waiting import HANG

pytestmark = pytest.mark.process


def measured(directory: Path) -> list[dict[str, Any]]:
    text = (directory / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with quick.toml and its run."""
    directory = tmp_path_factory.mktemp("finished")
    (directory / "quick.toml").write_text(QUICK)
    fedbilevel(directory, "run quick.toml")
    return directory


def test_a_run_without_a_terminal_prints_little_and_writes_all_files(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    result = fedbilevel(tmp_path, "run quick.toml")
    assert "round 12 of 12" in result.stderr
    assert "\x1b" not in result.stderr + result.stdout
    assert "fedbilevel plot runs/quick" in result.stdout
    directory = tmp_path / "runs" / "quick"
    records = measured(directory)
    assert [one["rounds"] for one in records] == [0, 4, 8, 12]
    assert records[0]["upper_samples"] == 0
    assert records[-1]["metrics"]["loss"] < records[0]["metrics"]["loss"]
    with np.load(directory / "solution.npz") as solution:
        assert {name: solution[name].shape for name in solution} == {
            "x": (64,),
            "y": (10, 64),
        }


def test_json_is_one_record_a_line_and_nothing_else(tmp_path, finished):
    (tmp_path / "quick.toml").write_text(QUICK)
    result = fedbilevel(tmp_path, "run quick.toml --json")
    assert result.stderr == ""
    *rows, last = [json.loads(one) for one in result.stdout.splitlines()]
    assert [row["rounds"] for row in rows] == [4, 8, 12]
    assert last["baseline"]["rounds"] == 12
    saved = (finished / "runs" / "quick" / "metrics.jsonl").read_text().splitlines()
    assert [row["metrics"] for row in rows] == [
        json.loads(one)["metrics"] for one in saved[1:]
    ]


def test_a_terminal_shows_rounds_costs_metrics_and_time_left(tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    shown = in_terminal(tmp_path, "run quick.toml --rounds 100 --evaluation.every 1")
    for part in ("of 100", "━", "samples drawn", "B sent", "validation loss", "left"):
        assert part in shown


def test_an_interrupted_run_prints_how_to_resume_and_ends_alike(tmp_path):
    (tmp_path / "long.toml").write_text(
        QUICK.replace("12", "70").replace("every = 4", "every = 1")
    )
    # A narrow pipe: the run waits for this process, so it cannot finish first.
    with subprocess.Popen(
        [sys.executable, "-m", "fedbilevel", "run", "long.toml", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        pipesize=4096,
    ) as begun:
        assert begun.stdout is not None
        for _ in range(7):
            begun.stdout.readline()
        begun.send_signal(signal.SIGINT)
        _, errors = begun.communicate(timeout=HANG)
        assert "To resume: fedbilevel resume runs/long" in errors
    assert begun.returncode == 130
    fedbilevel(tmp_path, "resume runs/long")
    fedbilevel(tmp_path, "run long.toml --directory runs/whole")
    results = []
    for name in ("long", "whole"):
        directory = tmp_path / "runs" / name
        rows = measured(directory)
        with np.load(directory / "solution.npz") as solution:
            results.append(
                ([row["metrics"] for row in rows], solution["x"], solution["y"])
            )
    assert len(results[0][0]) == 71
    for resumed, whole in zip(*results, strict=True):
        np.testing.assert_array_equal(resumed, whole)


def test_a_finished_run_can_be_given_more_rounds(finished, tmp_path):
    shutil.copytree(finished / "runs", tmp_path / "runs")
    fedbilevel(tmp_path, "resume runs/quick --rounds 14")
    rows = (tmp_path / "runs" / "quick" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["rounds"] for row in rows] == [0, 4, 8, 12, 14]


@pytest.mark.nightly
def test_an_algorithm_of_another_type_runs_beside_the_first(finished):
    fedbilevel(finished, "run quick.toml algorithm:SimFBO --algorithm.learning-rate 1")
    result = fedbilevel(finished, "compare runs/quick runs/quick-SimFBO --json")
    content = json.loads(result.stdout)
    assert set(content) == {"quick (FedBiO)", "quick-SimFBO"}


def test_help_comes_at_once_and_without_jax():
    program = (
        "import sys, time; began = time.perf_counter();"
        "from fedbilevel.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    times = []
    for _ in range(7):
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "fedbilevel", "--help"],
            check=True,
            capture_output=True,
        )
        after = os.times()
        # Processor time: others may be using the machine.
        times.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    assert sorted(times)[3] < 0.5


@pytest.mark.nightly
def test_the_settings_of_a_resumption_are_stored_with_the_run(finished, tmp_path):
    shutil.copytree(finished / "runs", tmp_path / "runs")
    fedbilevel(
        tmp_path, "resume runs/quick --rounds 14 --evaluation.metrics hypergradient"
    )
    experiment = read_experiment(tmp_path / "runs" / "quick" / "experiment.toml")
    assert experiment.rounds == 14
    assert experiment.evaluation.metrics == ("hypergradient",)
    before = measured(tmp_path / "runs" / "quick")
    assert "hypergradient" in before[-1]["metrics"]
    # Resuming a finished run changes nothing.
    fedbilevel(tmp_path, "resume runs/quick")
    assert measured(tmp_path / "runs" / "quick") == before
    arguments = "compare runs/quick --metric hypergradient --json"
    assert fedbilevel(tmp_path, arguments).stdout


def test_a_run_directory_is_locked_by_one_run(tmp_path):
    (tmp_path / "long.toml").write_text(QUICK.replace("12", "100000"))
    command = [sys.executable, "-m", "fedbilevel", "run", "long.toml", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as begun:
        assert begun.stdout is not None
        begun.stdout.readline()
        second = fedbilevel(tmp_path, "run long.toml --json --seed 3", code=2)
        assert "runs/long is locked: another process is running" in second.stderr
        begun.terminate()
        begun.stdout.read()
    # SIGTERM leaves a checkpoint as Ctrl-C does.
    assert begun.returncode == 143
    directory = tmp_path / "runs" / "long"
    assert read_experiment(directory / "experiment.toml").seed == 0
    left = measured(directory)[-1]["rounds"]
    assert (directory / "checkpoints" / f"round_{left}").is_dir()


@pytest.mark.nightly
def test_output_that_nobody_reads_stops_a_run_with_a_message(tmp_path):
    (tmp_path / "long.toml").write_text(QUICK.replace("12", "100000"))
    result = subprocess.run(
        f"{sys.executable} -m fedbilevel run long.toml --json | head -1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert json.loads(result.stdout)["rounds"] == 4
    assert "To resume: fedbilevel resume runs/long" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_second_interruption_ends_at_once_and_quietly(tmp_path):
    (tmp_path / "long.toml").write_text(QUICK.replace("12", "100000"))
    with subprocess.Popen(
        [sys.executable, "-m", "fedbilevel", "run", "long.toml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as begun:
        assert begun.stderr is not None
        assert "by FedBiO" in begun.stderr.readline()  # now it loads and compiles
        begun.send_signal(signal.SIGINT)
        assert begun.stderr.readline() == "\n"
        assert "press Ctrl-C again to stop now" in begun.stderr.readline()
        begun.send_signal(signal.SIGINT)
        output = begun.stderr.read()
    assert begun.returncode == 130
    assert "Traceback" not in output


def test_an_interruption_that_is_lost_in_a_collection_of_garbage_comes_again(
    capfd, monkeypatch
):
    def interrupt(phase: str, details: dict[str, int]) -> None:
        gc.callbacks.remove(interrupt)
        raise KeyboardInterrupt

    def lose_it() -> None:
        gc.collect()
        time.sleep(60)

    # The hook of users, which prints lost exceptions.
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with interruption() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted() == 130
        gc.callbacks.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            lose_it()
    assert "Traceback" not in capfd.readouterr().err
