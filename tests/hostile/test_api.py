"""Hostile inputs of the Python API are answered in a sentence, or rightly taken."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.hostile.cases import ACCEPTED, CASES

pytestmark = pytest.mark.process
LONGEST = 900
"""Characters of an answer; a sentence or two, with what is wrong and what to do."""

KINDS = ("ValueError", "TypeError", "SettingError", "NoUploadsError")


@pytest.fixture(scope="module")
def answers() -> list[Any]:
    """What became of every case."""
    command = [sys.executable, "-m", "tests.hostile.drive"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_every_case_has_a_name_of_its_own():
    assert len({case.what for case in CASES}) == len(CASES)


@pytest.mark.parametrize("place", range(len(CASES)), ids=[case.what for case in CASES])
def test_an_input_is_answered_or_taken(answers, place):
    case, answer = CASES[place], answers[place]
    if case.words is ACCEPTED:
        assert answer is None
        return
    assert answer is not None, "it was taken in silence"
    assert answer["kind"] in KINDS
    assert case.words in answer["words"]
    assert len(answer["words"]) < LONGEST
    assert answer["words"].rstrip().endswith(".")
