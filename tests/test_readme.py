"""The README's quick start is a program: it runs as printed, and fast enough."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_quick_start_tunes_a_model_within_a_minute(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = tmp_path / "quick_start.py"
    script.write_text(program)
    began = time.monotonic()
    # As a user runs it: without the compiler flags of the test suite.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    before, after = map(
        float, re.findall(r"validation accuracy .* tuning: (\S+)", done.stdout)
    )
    assert before < 0.6
    assert after > 0.88
    assert done.stdout.splitlines()[-1].startswith("validation accuracy after tuning")
