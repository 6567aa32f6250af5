"""Tests of the README's commands in a new virtual environment."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent
FIRST_RESULT_MINUTES = 5
"""Limit of CPU time, since the machine and the network may be busy."""


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all commands of the README, and return their working directory."""
    desk = tmp_path_factory.mktemp("desk")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "XLA_FLAGS", "VIRTUAL_ENV")
    }
    began = os.times()
    subprocess.run([sys.executable, "-m", "venv", desk / "fresh"], check=True)
    environment["PATH"] = f"{desk / 'fresh' / 'bin'}:{environment['PATH']}"
    environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    outputs = {}
    for block in blocks((ROOT / "README.md").read_text()):
        if block.language != "bash" or block.marked:
            continue
        for command in block.text.replace("\\\n", " ").splitlines():
            argv = shlex.split(command, comments=True)
            # Only the installation runs in the checkout.
            directory = ROOT if argv[0] == "pip" else desk
            process = subprocess.run(
                argv, cwd=directory, env=environment, capture_output=True, text=True
            )
            output, errors = process.stdout, process.stderr
            assert process.returncode == 0, f"{command}\n{output}\n{errors}"
            assert "Traceback" not in errors
            outputs[" ".join(argv)] = output
            if argv[0] == "pip":
                # The README's commands run a test, which needs pytest.
                install = ["pip", "install", "--quiet", "pytest"]
                subprocess.run(install, check=True, env=environment)
            if argv[:2] == ["fedbilevel", "run"] and "first.toml" in argv[-1]:
                ended = os.times()
                user = ended.children_user - began.children_user
                system = ended.children_system - began.children_system
                outputs["minutes"] = str((user + system) / 60)
    (desk / "outputs.json").write_text(json.dumps(outputs))
    return desk


@pytest.fixture(scope="module")
def outputs(transcript: Path) -> dict[str, str]:
    outputs: dict[str, str] = json.loads((transcript / "outputs.json").read_text())
    return outputs


def test_the_first_result_comes_within_five_minutes(outputs):
    assert float(outputs["minutes"]) < FIRST_RESULT_MINUTES
    output = outputs["fedbilevel run first.toml"]
    accuracy = re.search(r"accuracy (\S+) → (\S+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) < 0.2
    assert float(accuracy[2]) > 0.9


def test_the_second_algorithm_has_a_lower_loss_from_fewer_samples(outputs):
    table = outputs["fedbilevel compare runs/first runs/first-FedBiO"]
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines())
    first, second = (
        next(row for row in rows if row[0].startswith(name))
        for name in ("first (", "first-FedBiO")
    )
    loss = header.index("validation loss")
    assert float(second[loss]) < float(first[loss])
    samples = header.index("samples")
    ratio = float(second[samples].rstrip("k")) / float(first[samples].rstrip("k"))
    assert ratio == pytest.approx(1 / 3, abs=0.05)


def test_a_custom_problem_is_created_run_resumed_and_plotted(outputs, transcript):
    assert "heterogeneous" in outputs["fedbilevel diagnose runs/ridge"]
    rows = (transcript / "runs" / "ridge" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["rounds"] == 300
    for run in ("first", "ridge"):
        page = (transcript / "runs" / run / "report.html").read_text()
        assert "<svg" in page
    assert (transcript / "comparison.svg").exists()


def test_the_installed_package_is_used(transcript):
    program = "import fedbilevel; print(fedbilevel.__file__)"
    python = transcript / "fresh" / "bin" / "python"
    process = subprocess.run(
        [python, "-I", "-c", program], cwd=transcript, capture_output=True, text=True
    )
    assert process.stdout.startswith(str(transcript / "fresh"))
