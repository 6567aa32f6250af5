"""A mistake on the command line ends with a message and exit code 2."""

import json
import os
import subprocess
import sys

import pytest

from tests.commands.mistakes import MISTAKES, Mistake

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, str]]:
    # One process for all mistakes: JAX is imported once, and the type checks of the
    # test suite do not hide those of the library.
    result = subprocess.run(
        [sys.executable, "-m", "tests.commands.mistakes"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FEDBILEVEL_DATA": "nowhere"},
    )
    rows = map(json.loads, result.stdout.splitlines())
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_with_its_cause_and_cure(mistake: Mistake, answers):
    answer = answers[mistake.name]
    assert answer["code"] == 2, answer
    assert "Traceback" not in answer["message"]
    for part in mistake.parts:
        assert part in answer["message"]


def test_there_are_sixty_of_them():
    assert len({mistake.name for mistake in MISTAKES}) >= 60


def test_a_process_ends_with_the_code_and_nothing_but_the_message(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "fedbilevel", "run", "missing.toml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "fedbilevel run: missing.toml cannot be read: No such file or directory; give "
        "the path of an experiment file, or write one with: fedbilevel new NAME.\n"
    )
