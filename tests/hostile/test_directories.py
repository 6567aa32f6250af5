"""Damaged run directories and hostile problem files are answered in a sentence."""

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
"""Hostile inputs of all tables together."""
BAD = re.compile(r"Traceback|Errno|allow_pickle|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
"""What no answer may have: errors as Python prints them, bad advice, and controls."""
OWN = re.compile(rf"{RUN}/\.lock|comparison\.svg|__pycache__|executed")
"""What a command may write though it refuses, or beside the directory."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[Any]:
    """What became of every case."""
    directory = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "tests.hostile.drive_directories", str(directory)]
    environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_there_are_enough_hostile_inputs():
    names = [case.what for case in CASES]
    assert len(set(names)) == len(names)
    others = len(cases.CASES) + len(test_cli.FILES) + len(test_cli.WORDS)
    assert len(names) >= 60
    assert len(names) + others >= FEWEST


@pytest.mark.parametrize("place", range(len(CASES)), ids=[case.what for case in CASES])
def test_a_damaged_run_is_answered_in_a_sentence(outcomes, place):
    case, found = CASES[place], outcomes[place]
    if found is None:
        pytest.skip("root may read everything")
    said = found["said"]
    assert not BAD.search(said), said
    assert found["code"] == case.code, said
    assert case.words in said, said
    assert len(said) < 3000
    changed = [name for name in found["changed"] if not OWN.search(name)]
    inside = rf"{RUN}(/|$)" if case.changes else "$."
    assert not [name for name in changed if not re.match(inside, name)], changed
    if case.code == 2:
        assert "executed" not in found["changed"]
        assert said.rstrip().endswith((".", "?"))
