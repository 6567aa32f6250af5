"""Damaged run directories and hostile problem files: the messages of commands."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.hostile import cases, test_cli
from tests.hostile.directories import CASES, RUN

pytestmark = pytest.mark.process
FEWEST = 300
"""The smallest number of hostile inputs in all tables."""
BAD = re.compile(r"Traceback|Errno|allow_pickle|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
"""Text that no message may have: Python's errors, bad advice, control characters."""
WRITTEN = re.compile(rf"{RUN}/\.lock|comparison\.svg|__pycache__|executed")
"""Files that a command may write even if it fails, or beside the directory."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[Any]:
    """Return the outcome of every case."""
    directory = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "tests.hostile.drive_directories", str(directory)]
    environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, result.stderr
    outcomes: list[Any] = json.loads(result.stdout)
    return outcomes


def test_there_are_enough_hostile_inputs():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    others = len(cases.CASES) + len(test_cli.FILES) + len(test_cli.ARGUMENTS)
    assert len(names) >= 60
    assert len(names) + others >= FEWEST


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_damaged_run_is_answered_in_a_sentence(outcomes, number):
    case, outcome = CASES[number], outcomes[number]
    if outcome is None:
        pytest.skip("root may read everything")
    output = outcome["output"]
    assert not BAD.search(output), output
    assert outcome["code"] == case.code, output
    assert case.message in output, output
    assert len(output) < 3000
    changed = [name for name in outcome["changed"] if not WRITTEN.search(name)]
    inside = rf"{RUN}(/|$)" if case.changes else "$."
    assert not [name for name in changed if not re.match(inside, name)], changed
    if case.code == 2:
        assert "executed" not in outcome["changed"]
        assert output.rstrip().endswith((".", "?"))
