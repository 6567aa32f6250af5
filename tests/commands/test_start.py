"""Runs that are refused at the start: infinite losses, existing runs."""

from pathlib import Path

import pytest

import fedbilevel.__main__ as command_line

pytestmark = pytest.mark.slow

PROBLEM = """
import jax.numpy as jnp
import numpy as np
import fedbilevel as fb
from fedbilevel.problems import Task


def loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


def upper_loss(x, y, batch):
    return UPPER


def task():
    # The device of the check before a run has only ones; another device has a zero.
    held = [np.ones(4), np.array([0.0, 1.0])]
    devices = fb.InMemoryDevices([fb.LocalExamples(one, one) for one in held])
    metrics = {"undefined": lambda x, y: float("nan")}
    return Task(fb.BilevelProblem(upper_loss, loss), devices, 0.5, 1.0, metrics)
"""
EXPERIMENT = """
rounds = 2
[problem]
name = "CustomProblem"
file = "own.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.1
"""
GROUP = "jnp.mean((y - batch) ** 2) / jnp.max(batch - 1)"
LOGARITHM = "jnp.mean((y - batch) ** 2 - jnp.log(batch))"


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # It would print the library's warnings past the handlers of tests.
    monkeypatch.setattr(command_line, "_show_warnings", lambda: None)
    Path("start.toml").write_text(EXPERIMENT)
    return tmp_path


def test_a_loss_that_is_infinite_on_any_device_ends_the_command(workdir, capsys):
    Path("own.py").write_text(PROBLEM.replace("UPPER", LOGARITHM))
    assert command_line.main(["run", "start.toml"]) == 2
    said = capsys.readouterr().err
    assert "The validation loss (upper_loss on the examples of all devices)" in said
    assert "is inf at the start" in said
    assert "add a small number before a logarithm" in said
    assert "round" not in said
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_metric_may_be_undefined_and_a_finished_run_is_not_replaced(workdir, capsys):
    Path("own.py").write_text(PROBLEM.replace("UPPER", "loss(x, y, batch)"))
    assert command_line.main(["run", "start.toml", "--json"]) == 0
    assert (workdir / "runs/start/metrics.jsonl").read_text().count("NaN") == 3
    capsys.readouterr()
    assert command_line.main(["run", "start.toml", "--rounds", "3"]) == 2
    said = capsys.readouterr().err
    assert "runs/start already has a finished run of 2 rounds" in said
    assert "fedbilevel resume runs/start --rounds 4, or choose" in said


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_commands_refuse_a_loss_of_an_absent_group(workdir, capsys, command):
    Path("own.py").write_text(PROBLEM.replace("UPPER", GROUP))
    assert command_line.main([command, "start.toml"]) == 2
    output = capsys.readouterr().err
    assert "upper_loss is not finite at the initial x and y" in output
    assert "vanishes" not in output


@pytest.mark.nightly
def test_resume_names_the_file_that_was_edited(workdir, capsys):
    text = PROBLEM.replace("UPPER", "loss(x, y, batch)")
    Path("own.py").write_text(text)
    assert command_line.main(["run", "start.toml", "--json"]) == 0
    more = ["resume", "runs/start", "--rounds", "3", "--json"]
    Path("own.py").write_text(text.replace("- x * batch", "- 2 * x * batch"))
    capsys.readouterr()
    assert command_line.main(more) == 2
    output = " ".join(capsys.readouterr().err.split())
    assert "own.py was edited since the run in runs/start began" in output
    assert "the original is runs/start/problem.py." in output
    assert output.endswith("or run the edited file with another --directory.")
    # A comment changes no value of a run.
    Path("own.py").write_text(f"{text}# a comment")
    assert command_line.main(more) == 0
