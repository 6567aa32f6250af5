"""What a new user types: the README's commands, in a fresh virtual environment."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pages import blocks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent
FIRST_RESULT_MINUTES = 5
"""Of a processor: others may be using the machine, and the network."""


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Type all commands of the README; return the folder in which they were typed."""
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
    answers = {}
    for block in blocks((ROOT / "README.md").read_text()):
        if block.language != "bash" or block.marked:
            continue
        for command in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(command, comments=True)
            # Installation is from a checkout, all else from anywhere.
            where = ROOT if words[0] == "pip" else desk
            done = subprocess.run(
                words, cwd=where, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            answers[" ".join(words)] = done.stdout
            if words[0] == "pip":
                # As the README says of its test.
                install = ["pip", "install", "--quiet", "pytest"]
                subprocess.run(install, check=True, env=environment)
            if words[:2] == ["fedbilevel", "run"] and "first.toml" in words[-1]:
                ended = os.times()
                user = ended.children_user - began.children_user
                system = ended.children_system - began.children_system
                answers["minutes"] = str((user + system) / 60)
    (desk / "answers.json").write_text(json.dumps(answers))
    return desk


@pytest.fixture(scope="module")
def answers(transcript: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((transcript / "answers.json").read_text())
    return found


def test_the_first_result_comes_within_five_minutes(answers):
    assert float(answers["minutes"]) < FIRST_RESULT_MINUTES
    said = answers["fedbilevel run first.toml"]
    accuracy = re.search(r"accuracy (\S+) → (\S+)", said)
    assert accuracy is not None
    assert float(accuracy[1]) < 0.2
    assert float(accuracy[2]) > 0.9


def test_the_rival_beside_it_has_a_lower_loss_from_fewer_samples(answers):
    table = answers["fedbilevel compare runs/first runs/first-FedBiO"]
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines())
    first, rival = (
        next(row for row in rows if row[0].startswith(name))
        for name in ("first (", "first-FedBiO")
    )
    loss = header.index("validation loss")
    assert float(rival[loss]) < float(first[loss])
    samples = header.index("samples")
    ratio = float(rival[samples].rstrip("k")) / float(first[samples].rstrip("k"))
    assert ratio == pytest.approx(1 / 3, abs=0.05)


def test_a_problem_of_ones_own_was_made_run_resumed_and_drawn(answers, transcript):
    assert "heterogeneous" in answers["fedbilevel diagnose runs/ridge"]
    rows = (transcript / "runs" / "ridge" / "measured.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["rounds"] == 300
    for run in ("first", "ridge"):
        page = (transcript / "runs" / run / "report.html").read_text()
        assert "<svg" in page
    assert (transcript / "comparison.svg").exists()


def test_nothing_of_the_checkout_was_used_but_what_was_installed(transcript):
    program = "import fedbilevel; print(fedbilevel.__file__)"
    python = transcript / "fresh" / "bin" / "python"
    done = subprocess.run(
        [python, "-I", "-c", program], cwd=transcript, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(transcript / "fresh"))
