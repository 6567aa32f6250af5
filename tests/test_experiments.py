"""The experiments run, in their fast setting, as a user runs them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import experiment

FOLDER = experiment.ROOT / ".results" / "fast"
FETCHED = (experiment.ROOT / ".data" / "mnist").exists()


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("heterogeneity", ("heterogeneity.csv", "diagnosis.csv", "heterogeneity.svg")),
        pytest.param(
            "tasks",
            ("tasks.csv", "tasks-cleaning-mnist.svg"),
            marks=pytest.mark.skipif(
                not FETCHED, reason="no data: run python -m benchmarks.fetch_data"
            ),
        ),
    ],
)
def test_an_experiment_keeps_its_bounds_and_writes_its_results(name, files):
    for file in files:
        (FOLDER / file).unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--fast"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
    for file in files:
        assert (FOLDER / file).stat().st_size > 0


def test_cells_that_are_done_are_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "ROOT", Path(tmp_path))
    calls = []

    def cell(number):
        calls.append(number)
        return {"number": number}

    def broken():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run_cells("e", "s", {"one": lambda: cell(1), "two": broken})
    both = {"one": lambda: cell(1), "two": lambda: cell(2)}
    assert experiment.run_cells("e", "s", both) == {
        "one": {"number": 1},
        "two": {"number": 2},
    }
    assert calls == [1, 2]
    experiment.run_cells("e", "another setting", both)
    assert calls == [1, 2, 1, 2]


def test_a_slope_is_found_with_an_interval_that_holds_it():
    generator = np.random.default_rng(0)
    x = [1.0, 2.0, 4.0, 8.0]
    y = [3 * a**-1.5 * np.exp(0.1 * generator.normal(size=20)) for a in x]
    slope = experiment.fit_slope(x, [list(group) for group in y])
    assert slope.low < -1.5 < slope.high
    assert slope.high - slope.low < 0.15
