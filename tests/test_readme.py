"""Tests of the README's programs: they run as printed, and fast enough."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

README = Path(__file__).parent.parent / "README.md"


PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run_program(program: str, directory: Path) -> str:
    """Return the output of a program, run without the compiler flags of the tests."""
    script = directory / "program.py"
    script.write_text(program)
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    process = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_quick_start_tunes_a_model_within_a_minute(tmp_path):
    # CPU time, since the machine may be busy.
    began = os.times()
    output = run_program(PROGRAMS[0], tmp_path)
    ended = os.times()
    assert ended.children_user - began.children_user < 60
    without, tuned = map(float, re.findall(r"test accuracy .* tuning: (\S+)", output))
    assert 0.5 < without < 0.65
    assert tuned > 0.9
    # The README's values, up to rounding on another machine: an image or two.
    text = " ".join(README.read_text().split())
    values = re.search(r"is (\S+) without tuning and (\S+) with it", text)
    assert values is not None
    accuracies = [float(value) for value in values.groups()]
    assert accuracies == pytest.approx([without, tuned], abs=0.01)


@pytest.mark.nightly
def test_the_later_programs_continue_the_quick_start(tmp_path):
    _, tuning, diagnosis, cleaning = PROGRAMS
    # They need the definitions of the quick start, before its first output.
    definitions, _ = PROGRAMS[0].split("print(", maxsplit=1)
    output = run_program(definitions + tuning + diagnosis + cleaning, tmp_path)
    assert "This federation is heterogeneous" in output
    losses = re.search(r"loss of each setting: \[(.*)\]", output)
    assert losses is not None
    low, middle, high = map(float, losses[1].split())
    assert high < middle < low  # the hypergradient is small, so a large step is best
    (area,) = re.findall(r"area under the curve: (\S+)", output)
    assert float(area) > 0.85
