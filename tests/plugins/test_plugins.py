"""A plug-in's algorithm, problem and server optimiser run like the library's own.

From a TOML file, by the command line with custom options, and in a federation
whose sites are in one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbilevel.experiments import read_experiment, write_experiment
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.schema.registry import find_type
from tests.plugins.package import MODULE, write_package
from tests.waiting import HANG

pytestmark = pytest.mark.process

FILE = """rounds = 3
data.train_size = 60
data.validation_size = 30
partition.devices = 3
algorithm = {{ name = "{algorithm}", learning_rate = 0.1, local_steps = 2 }}
problem = {{ name = "{problem}", strength = 0.2 }}
server_optimiser = {{ name = "{optimiser}", learning_rate = 1.0, share = 0.25 }}
"""
FEDERATION = """
from pathlib import Path
import jax
import numpy as np
from fedbilevel import run
from fedbilevel.experiments import read_experiment, build_task
from fedbilevel.federation import (
    REHEARSAL, EnrolledDevices, Federation, InProcess, Site
)

experiment = read_experiment(Path("asked.toml"))
problem, devices, x, y = (task := build_task(experiment))[:4]
algorithm = experiment.federated_algorithm
held = [devices.local(place) for place in range(3)]
sites = {
    str(place): Site(place, problem, algorithm, one, x, y, rules=REHEARSAL)
    for place, one in enumerate(held)
}
there = EnrolledDevices({name: one.enrolment for name, one in sites.items()}, held[0])
engine = Federation(InProcess(sites), there, run="first", timeout=60.0)
*_, far = run(problem, algorithm, there, x, y, rounds=3, engine=engine)
*_, here = run(problem, algorithm, devices, x, y, rounds=3)
weights = [
    np.concatenate([np.ravel(one) for one in jax.tree.leaves(last.y)])
    for last in (far, here)
]
assert np.ptp(weights[1]) > 0.01
np.testing.assert_allclose(*weights, rtol=0, atol=1e-6)
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "installed").mkdir()
    write_package(tmp_path / "installed")
    (tmp_path / "asked.toml").write_text(
        FILE.format(algorithm="Plain", problem="Penalised", optimiser="shortened")
    )
    return tmp_path


def python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        [str(directory / "installed"), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANG,
    )


def run_of(directory: Path, *options: str) -> str:
    result = python(directory, "-m", "fedbilevel", "run", "asked.toml", *options)
    assert result.returncode == 0, result.stderr
    assert "is ignored: AttributeError" in result.stderr
    assert "another algorithm has this name" in result.stderr
    assert "another server optimiser has this name" in result.stderr
    (file,) = directory.glob("runs/*/experiment.toml")
    return file.read_text("utf-8")


def test_a_file_names_them_and_options_change_their_settings(directory):
    text = run_of(directory, "--algorithm.drag", "7", "--problem.strength", "0.3")
    assert 'name = "Plain"' in text
    assert "drag = 7.0" in text
    assert 'name = "Penalised"' in text
    assert "strength = 0.3" in text
    assert 'name = "shortened"' in text


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("ends", "import sys; sys.exit(3)", "SystemExit: 3. Install its package"),
        (
            "lines",
            "raise RuntimeError('a\\nb')",
            "RuntimeError: a. Install its package",
        ),
        (
            "mute",
            "class Mute(Exception):\n  def __str__(self): raise ValueError\nraise Mute",
            "cannot be imported: Mute. Install",
        ),
        (
            "local",
            "import fedbilevel\n"
            "def make():\n  class Local(fedbilevel.FedBiO): pass\n  return Local\n"
            "P = make()",
            r"make.<locals>.Local\); define it at the top level of its module",
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_an_error_of_the_file(
    name, module, message, tmp_path, monkeypatch
):
    name = f"broken_{name}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        find_type("algorithm", f"{name}:P")


def test_a_file_names_them_by_their_place(directory, monkeypatch):
    # Only the module is changed: entry points are read once per process.
    (directory / "alone").mkdir()
    (directory / "alone" / "plugged.py").write_text(MODULE)
    monkeypatch.syspath_prepend(directory / "alone")
    file, again = directory / "asked.toml", directory / "again.toml"
    file.write_text(
        FILE.format(
            algorithm="plugged:Plain",
            problem="plugged:Penalised",
            optimiser="plugged:shortened",
        )
    )
    experiment = read_experiment(file)
    assert type(experiment.algorithm).__name__ == "Plain"
    options = ["--algorithm.drag", "7", "problem:plugged:Penalised"]
    changed = with_overrides(experiment, options, "fedbilevel run")
    write_experiment(changed, again)
    assert 'name = "plugged:Plain"' in again.read_text()
    assert 'name = "plugged:shortened"' in again.read_text()
    quarter = experiment.server_optimiser
    assert quarter is not None
    assert float(quarter.step(1.0, quarter.init(0.0), 0.0)[0]) == -0.25
    assert "drag = 7.0" in again.read_text()
    assert read_experiment(again) == changed
    message = "--algorithm.drag: give a number, above 0, not -1.0."
    with pytest.raises(ValueError, match=message):
        with_overrides(experiment, ["--algorithm.drag", "-1"], "fedbilevel run")


@pytest.mark.nightly
def test_a_federation_in_one_process_gives_the_numbers_of_a_simulation(directory):
    result = python(directory, "-c", FEDERATION)
    assert result.returncode == 0, result.stderr
