"""Tests of the experiments in their fast setting."""

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import experiment
from tests.waiting import HANG

ENDS = (
    ".csv",
    "-slopes.csv",
    ".svg",
    *(f"-one-noise{end}" for end in (".csv", "-slopes.csv", ".svg")),
)
"""Suffixes of the results of the two experiments on theory."""
NEEDS_DATA = pytest.mark.skipif(
    not (experiment.ROOT / ".data" / "mnist").exists(),
    reason="no data: run python -m benchmarks.fetch_data",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("heterogeneity", ("heterogeneity.csv", "diagnosis.csv", "heterogeneity.svg")),
        *(
            (name, tuple(f"{name}{end}" for end in ENDS))
            for name in ("speedup", "complexity")
        ),
        pytest.param(
            "tasks",
            (
                "tasks.csv",
                "tasks-random.md",
                "tasks-costs.md",
                "tasks-cleaning-mnist.svg",
            ),
            marks=NEEDS_DATA,
        ),
        ("sites", ("sites-accuracy.md", "sites-digits-alike-3-next-60-server.md")),
        pytest.param(
            "torch_tasks",
            ("torch-tasks.md",),
            marks=NEEDS_DATA,
        ),
        pytest.param(
            "traffic",
            ("traffic.csv", "traffic-cleaning-mnist.md"),
            marks=NEEDS_DATA,
        ),
    ],
)
def test_an_experiment_meets_its_bounds_and_writes_its_results(name, files, tmp_path):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--fast"]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "FEDBILEVEL_CELLS": str(tmp_path)},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "MISSED" not in process.stdout
    for file in files:
        assert (tmp_path / "fast" / file).stat().st_size > 0


@pytest.mark.nightly
def test_finished_cells_are_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBILEVEL_CELLS", str(tmp_path))
    calls = []

    def cell(number):
        calls.append(number)
        return {"number": number}

    def broken():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run_cells("e", "s", {"one": lambda: cell(1), "two": broken})
    cells = {"one": lambda: cell(1), "two": lambda: cell(2)}
    assert experiment.run_cells("e", "s", cells) == {
        "one": {"number": 1},
        "two": {"number": 2},
    }
    assert calls == [1, 2]
    experiment.run_cells("e", "another setting", cells)
    assert calls == [1, 2, 1, 2]


@pytest.mark.nightly
def test_published_cells_are_used_if_no_cell_is_stored(tmp_path, monkeypatch):
    published = tmp_path / "published.json"
    monkeypatch.setenv("FEDBILEVEL_CELLS", str(tmp_path / "here"))
    cells = {"one": lambda: {"number": 1 / 3}, "two": lambda: [None, float("nan")]}
    experiment.run_cells("e", "s", {"one": cells["one"]}, published)
    results = experiment.run_cells("e", "s", cells, published)
    assert results["one"] == {"number": pytest.approx(1 / 3, rel=1e-5)}

    def broken():
        raise AssertionError

    monkeypatch.setenv("FEDBILEVEL_CELLS", str(tmp_path / "elsewhere"))
    again = experiment.run_cells("e", "s", dict.fromkeys(cells, broken), published)
    assert again["one"] == {"number": 0.333333}
    assert again.keys() == experiment.published_cells(published).keys() == cells.keys()
    with pytest.raises(AssertionError):
        experiment.run_cells("e", "another", dict.fromkeys(cells, broken), published)


@pytest.mark.process
def test_processes_share_the_cells_and_none_is_computed_twice(tmp_path):
    program = """
import sys, time
from pathlib import Path
from benchmarks import experiment

def cell(number):
    time.sleep(0.2)
    with Path(sys.argv[1]).open("a") as file:
        file.write(f"{number}\\n")
    return number

cells = {str(number): (lambda number=number: cell(number)) for number in range(6)}
assert experiment.run_cells("e", "s", cells) == {str(n): n for n in range(6)}
"""
    log = tmp_path / "log"
    environment = {**os.environ, "FEDBILEVEL_CELLS": str(tmp_path)}
    command = [sys.executable, "-c", program, str(log)]
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(timeout=HANG) for process in processes] == [0, 0]
    assert sorted(log.read_text().split()) == [str(number) for number in range(6)]


def test_a_slope_is_found_with_an_interval_that_holds_it():
    # Each group has a common error, like that of a step tuned on a grid.
    generator = np.random.default_rng(0)
    x = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    covered = 0
    for _ in range(300):
        common = 0.1 * generator.normal(size=6)
        scatter = 0.15 * generator.normal(size=(6, 10))
        y = 3 * np.power(x, -1.5)[:, None] * np.exp(common[:, None] + scatter)
        slope = experiment.fit_slope(x, y.tolist())
        covered += slope.low < -1.5 < slope.high
        assert slope.high - slope.low < 1.0
    assert 0.91 < covered / 300 < 0.99
