"""`fedbilevel diagnose` in this process, on problems of a few numbers."""

import json

import pytest

from fedbilevel.__main__ import main
from fedbilevel.commands import display
from fedbilevel.commands.diagnosis_progress import line_of
from fedbilevel.metrics import DiagnosisProgress, Stage

pytestmark = pytest.mark.slow

PROBLEM = """
import jax.numpy as jnp
import numpy as np
import fedbilevel as fb
from fedbilevel.problems import Task


def upper_loss(x, y, batch):
    return jnp.mean((y - batch) ** 2)


def lower_loss(x, y, batch):
    return LOWER_LOSS


def task():
    held = [fb.LocalExamples(np.ones(2), np.full(2, level)) for level in (1.0, 2.0)]
    start = jnp.array(0.1), jnp.array(0.1)
    return Task(
        fb.BilevelProblem(upper_loss, lower_loss), fb.InMemoryDevices(held), *start, {}
    )
"""
EXPERIMENT = """
rounds = 1
[problem]
name = "CustomProblem"
file = "small.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.001
"""
WELLS = "jnp.mean(batch) * (y**2 - 1) ** 2 / 4 - x * y"  # curvature −batch at y = 0
BOWL = "jnp.mean(batch) * y**2 / 2 - x * y"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    return tmp_path


@pytest.mark.nightly
def test_negative_curvature_is_named_at_the_end_of_a_run(directory, capsys):
    (directory / "small.py").write_text(PROBLEM.replace("LOWER_LOSS", WELLS))
    assert main(["run", "small.toml", "--json"]) == 0
    capsys.readouterr()
    assert main(["diagnose", "runs/small"]) == 0
    answer = capsys.readouterr().out
    assert "The verdict is unclear. The lower loss is not strongly convex" in answer
    assert "curvature along a direction is -1.4" in answer  # 1.5 (3 · 0.1² − 1)
    assert "Add a penalty on y" in answer


@pytest.mark.nightly
def test_json_is_all_that_is_printed_and_progress_goes_to_standard_error(
    directory, capsys, monkeypatch
):
    (directory / "small.py").write_text(PROBLEM.replace("LOWER_LOSS", BOWL))
    assert main(["diagnose", "small.toml", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    answer = json.loads(shown.out)
    # H is 1 and 2: the mean of 1/H_k is 3/4, and 1/H̄ is 2/3.
    assert answer["distance"] == pytest.approx(0.125)
    assert answer["verdict"] == "HETEROGENEOUS"
    assert answer["cause"] is None
    monkeypatch.setattr(display, "PLAIN_SECONDS", 0.0)
    assert main(["diagnose", "small.toml", "--tolerance", "0.2"]) == 0
    shown = capsys.readouterr()
    assert "homogeneous enough" in shown.out
    assert [f"part {n} of 4" in shown.err for n in range(1, 5)] == [True] * 4


@pytest.mark.nightly
def test_a_diagnosis_of_a_private_experiment_is_not_covered(directory, capsys):
    (directory / "small.py").write_text(PROBLEM.replace("LOWER_LOSS", BOWL))
    noise = "[transforms]\nclip = 1.0\nnoise = 2.0\n"
    (directory / "private.toml").write_text(EXPERIMENT + noise)
    assert main(["diagnose", "private.toml", "--json"]) == 0
    shown = capsys.readouterr()
    assert "the ε of private.toml does not cover it" in shown.err
    assert json.loads(shown.out)["verdict"] == "HETEROGENEOUS"


def test_a_bar_grows_with_the_logarithm_of_the_residual():
    line = line_of(
        DiagnosisProgress(Stage.LOCAL, 7, residual=1e-4, goal=1e-8), with_bar=True
    )
    assert line.count("━") == line.count("╌") == 12
    assert "part 4 of 4, devices' local adjoints" in line
    result = DiagnosisProgress(Stage.LOWER, 7, residual=0.0, goal=1e-8)
    assert line_of(result, with_bar=True).count("━") == 24
