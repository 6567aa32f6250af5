"""The README's quick start is a program: it runs as printed, and fast enough."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

README = Path(__file__).parent.parent / "README.md"


PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def printed(program: str, directory: Path) -> str:
    """Run a program as a user does: without the compiler flags of the test suite."""
    script = directory / "program.py"
    script.write_text(program)
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quick_start_tunes_a_model_within_a_minute(tmp_path):
    # Processor time: others may be using the machine.
    began = os.times()
    output = printed(PROGRAMS[0], tmp_path)
    ended = os.times()
    assert ended.children_user - began.children_user < 60
    without, tuned = map(float, re.findall(r"test accuracy .* tuning: (\S+)", output))
    assert 0.5 < without < 0.65
    assert tuned > 0.9
    # As the README says of them, up to another machine's rounding: an image or two.
    text = " ".join(README.read_text().split())
    said = re.search(r"is (\S+) without tuning and (\S+) with it", text)
    assert said is not None
    found = [float(one) for one in said.groups()]
    assert found == pytest.approx([without, tuned], abs=0.01)


@pytest.mark.nightly
def test_the_later_programs_go_on_from_the_quick_start(tmp_path):
    _, tuning, diagnosis, cleaning = PROGRAMS
    # What they need of the quick start is defined before its first result.
    definitions, _ = PROGRAMS[0].split("print(", maxsplit=1)
    output = printed(definitions + tuning + diagnosis + cleaning, tmp_path)
    assert "This federation is heterogeneous" in output
    losses = re.search(r"loss of each setting: \[(.*)\]", output)
    assert losses is not None
    low, middle, high = map(float, losses[1].split())
    assert high < middle < low  # the hypergradient is small: a large step is wanted
    (area,) = re.findall(r"area under the curve: (\S+)", output)
    assert float(area) > 0.85
