"""Whatever is typed wrongly is answered in words, with exit code 2."""

import json
import os
import subprocess
import sys

import pytest

from tests.commands.mistakes import MISTAKES, Mistake

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, str]]:
    # One process for all: JAX is imported once, and nothing of the suite's checks of
    # types stands before the library's own.
    done = subprocess.run(
        [sys.executable, "-m", "tests.commands.mistakes"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FEDBILEVEL_DATA": "nowhere"},
    )
    rows = map(json.loads, done.stdout.splitlines())
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_with_its_cause_and_cure(mistake: Mistake, answers):
    answer = answers[mistake.name]
    assert answer["code"] == 2, answer
    assert "Traceback" not in answer["said"]
    for word in mistake.words:
        assert word in answer["said"]


def test_there_are_sixty_of_them():
    assert len({mistake.name for mistake in MISTAKES}) >= 60


def test_a_process_ends_with_the_code_and_nothing_but_the_message(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedbilevel", "run", "missing.toml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "fedbilevel run: missing.toml cannot be read: No such file or directory; give "
        "the path of an experiment file, or write one with: fedbilevel new NAME.\n"
    )
