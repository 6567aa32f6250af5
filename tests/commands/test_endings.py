"""A run whose loss increased is reported: summary, report and exit code."""

import json
from pathlib import Path

import pytest

import fedbilevel.__main__ as command_line
from fedbilevel.commands import plot, resume, run
from fedbilevel.experiments import causes

pytestmark = pytest.mark.slow

# Φ(x) = (x − 1)² with y*(x) = x. The lower loss of the last device has a curvature that
# a test chooses; while all have 2, steps on y beyond 1 diverge.
PROBLEM = '''"""A scalar problem."""
import jax.numpy as jnp
import numpy as np
from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.problems import Task


def upper_loss(x, y, batch):
    return jnp.mean((y - 1) ** 2 + 0 * batch)


def lower_loss(x, y, batch):
    return jnp.mean(batch * (y - x) ** 2) / 2


def task():
    held = [LocalExamples(np.ones(2), np.full(2, c)) for c in (2.0, 2.0, 2.0, LAST)]
    problem = BilevelProblem(upper_loss, lower_loss)
    return Task(problem, InMemoryDevices(held), jnp.array(3.0), jnp.array(2.5), {})
'''
EXPERIMENT = """
rounds = 20
[problem]
name = "CustomProblem"
file = "problem.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.1
upper_rate = 0.5
[evaluation]
every = 10
"""


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # It would print the library's warnings past the handlers of tests.
    monkeypatch.setattr(command_line, "_show_warnings", lambda: None)
    # The cause must not depend on the load of the machine.
    monkeypatch.setattr(causes, "SECONDS", 600.0)
    Path("problem.py").write_text(PROBLEM.replace("LAST", "2.0"))
    Path("scalar.toml").write_text(EXPERIMENT)
    return tmp_path


def test_a_run_that_diverges_names_its_step_and_exits_3(workdir, capsys):
    command = ["scalar.toml", "--algorithm.lower-rate", "12", "--rounds", "30"]
    assert run.main(command) == 3
    output = capsys.readouterr().out
    assert "diverged: the validation loss was 2.25 and is " in output
    assert "the lower step was too large: learning_rate · lower_rate = 1.2 " in output
    assert "exceeds 2 / L = 1" in output
    # All other commands report the same.
    assert resume.main(["runs/scalar"]) == 3
    assert resume.main(["runs/scalar", "--json"]) == 3
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert outcome["outcome"] == "diverged"
    assert "the lower step was too large" in outcome["reasons"][-1]
    assert plot.main(["runs/scalar"]) == 0
    assert (
        "diverged: the validation loss" in Path("runs/scalar/report.html").read_text()
    )
    # A new run in the same directory does not show the old cause.
    command = ["scalar.toml", "--directory", "runs/good", "--json"]
    assert run.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert not any("outcome" in json.loads(line) for line in lines if line[0] == "{")


def test_a_run_that_overflows_names_its_step_and_exits_3(workdir, capsys):
    assert (
        command_line.main(["run", "scalar.toml", "--algorithm.lower-rate", "1e90"]) == 3
    )
    output = capsys.readouterr().err
    assert "0 of 4 uploads were accepted: upload is not finite" in output
    assert "the lower step was too large" in output
    assert "the lower step was too large" in Path("runs/scalar/cause.txt").read_text()


@pytest.mark.nightly
def test_a_device_that_is_excluded_most_of_the_time_is_a_failure(workdir, capsys):
    # With a curvature of 40, its 30 local steps of 0.1 multiply y − x by 3³⁰.
    Path("problem.py").write_text(PROBLEM.replace("LAST", "40.0"))
    options = "--algorithm.local-steps 30 --norm-limit 1e3"
    assert run.main(["scalar.toml", *options.split()]) == 3
    output = capsys.readouterr().out
    assert "After 20 rounds: validation loss 2.25 → " in output
    assert (
        "device 3 was excluded in 20 of its 20 rounds: the result uses only the other "
        "3 devices.\n"
    ) in output
    assert "device 3 diverges: learning_rate · lower_rate = 0.1 " in output
    assert "exceeds 2 / L = 0.05" in output
    last = Path("runs/scalar/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["exclusions"]["devices"] == [[3, 20, 20]]
