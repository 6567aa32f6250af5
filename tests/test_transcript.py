"""Every block of the README runs from an installed wheel in a fresh environment."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pages import blocks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parent.parent
MINUTES = 5
"""Processor time of all blocks, installation included: other programs share it."""


def seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all blocks of the README in one directory; return the directory."""
    desk = tmp_path_factory.mktemp("desk")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "XLA_FLAGS", "VIRTUAL_ENV")
    }
    # `pip install .` builds a wheel and installs it; a copy keeps the build out of
    # the checkout.
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if name.startswith("src/") or "/" not in name:
            (desk / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, desk / "checkout" / name)
    subprocess.run([sys.executable, "-m", "venv", desk / "fresh"], check=True)
    environment["PATH"] = f"{desk / 'fresh' / 'bin'}:{environment['PATH']}"
    environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    start = seconds_of_children()
    lines = []
    for block in blocks((ROOT / "README.md").read_text("utf-8")):
        if block.language == "python":
            (desk / "program.py").write_text(block.text)
            commands = ["python program.py"]
        else:
            assert block.language == "bash"
            assert not block.marked, "every block of the README runs"
            commands = block.text.splitlines()
        for command in commands:
            argv = shlex.split(command, comments=True)
            result = subprocess.run(
                argv,
                cwd=desk / "checkout" if argv[0] == "pip" else desk,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            text = f"$ {command}\n{result.stdout}\n{result.stderr}"
            assert result.returncode == 0, text
            assert "Traceback" not in result.stderr, text
            lines.append(text)
    lines.append(f"seconds {seconds_of_children() - start:.0f}")
    (desk / "transcript.txt").write_text("\n".join(lines))
    return desk


def test_all_blocks_take_less_than_five_minutes(transcript):
    last = (transcript / "transcript.txt").read_text().splitlines()[-1]
    print(last)
    assert float(last.split()[1]) < 60 * MINUTES


def test_the_commands_leave_their_results(transcript):
    assert "<svg" in (transcript / "runs/first-Auto/report.html").read_text()
    for name in ("ridge", "ridge-sharded", "ridge-federated"):
        assert (transcript / "runs" / name / "solution.npz").exists()
    assert (transcript / "comparison.svg").exists()


def test_only_the_installed_wheel_was_used(transcript):
    program = "import fedbilevel; print(fedbilevel.__file__)"
    python = transcript / "fresh" / "bin" / "python"
    result = subprocess.run(
        [python, "-I", "-c", program],
        cwd=transcript,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith(str(transcript / "fresh"))
