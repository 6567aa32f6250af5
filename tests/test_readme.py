"""The README's quick start is a program: it runs as printed, and fast enough."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def printed(program: str, folder: Path) -> str:
    """Run a program as a user does: without the compiler flags of the test suite."""
    script = folder / "program.py"
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
    began = time.monotonic()
    output = printed(PROGRAMS[0], tmp_path)
    assert time.monotonic() - began < 60
    before, after = map(
        float, re.findall(r"validation accuracy .* tuning: (\S+)", output)
    )
    assert before < 0.6
    assert after > 0.88
    assert output.splitlines()[-1].startswith("validation accuracy after tuning")


def test_the_later_programs_go_on_from_the_quick_start(tmp_path):
    _, diagnosis, cleaning = PROGRAMS
    # What they need of the quick start is defined before its first result.
    definitions, _ = PROGRAMS[0].split("print(", maxsplit=1)
    output = printed(definitions + diagnosis + cleaning, tmp_path)
    assert "This federation is homogeneous enough" in output
    (area,) = re.findall(r"area under the curve: (\S+)", output)
    assert float(area) > 0.85
