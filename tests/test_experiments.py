"""The experiments run, in their fast setting, as a user runs them."""

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import experiment

ENDS = (
    ".csv",
    "-slopes.csv",
    ".svg",
    *(f"-one-noise{end}" for end in (".csv", "-slopes.csv", ".svg")),
)
"""Of the results of the two experiments on theory."""
FETCHED = (experiment.ROOT / ".data" / "mnist").exists()


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
            ("tasks.csv", "tasks-cleaning-mnist.svg"),
            marks=pytest.mark.skipif(
                not FETCHED, reason="no data: run python -m benchmarks.fetch_data"
            ),
        ),
    ],
)
def test_an_experiment_keeps_its_bounds_and_writes_its_results(name, files, tmp_path):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--fast"]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "FEDBILEVEL_CELLS": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
    for file in files:
        assert (tmp_path / "fast" / file).stat().st_size > 0


@pytest.mark.slow
def test_cells_that_are_done_are_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBILEVEL_CELLS", str(tmp_path))
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
    # Groups have an error of their own, as a step tuned on a grid gives them.
    generator = np.random.default_rng(0)
    x = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    held = 0
    for _ in range(300):
        common = 0.1 * generator.normal(size=6)
        scatter = 0.15 * generator.normal(size=(6, 10))
        y = 3 * np.power(x, -1.5)[:, None] * np.exp(common[:, None] + scatter)
        slope = experiment.fit_slope(x, y.tolist())
        held += slope.low < -1.5 < slope.high
        assert slope.high - slope.low < 1.0
    assert 0.91 < held / 300 < 0.99
