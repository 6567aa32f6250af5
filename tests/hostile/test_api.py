"""Hostile inputs of the Python API raise an error with a cure, or are accepted."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.hostile.cases import ACCEPTED, CASES

pytestmark = pytest.mark.process
LONGEST = 900
"""The largest number of characters of a message."""

ERRORS = ("ValueError", "TypeError", "SettingError", "NoUploadsError")


@pytest.fixture(scope="module")
def answers() -> list[Any]:
    """Return the answer to every case."""
    command = [sys.executable, "-m", "tests.hostile.drive"]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert result.returncode == 0, result.stderr
    messages: list[Any] = json.loads(result.stdout)
    return messages


def test_every_case_has_its_own_name():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_an_input_is_refused_or_accepted(answers, number):
    case, answer = CASES[number], answers[number]
    if case.message is ACCEPTED:
        assert answer is None
        return
    assert answer is not None, "it was accepted silently"
    assert answer["error"] in ERRORS
    assert case.message in answer["message"]
    assert len(answer["message"]) < LONGEST
    assert answer["message"].rstrip().endswith(".")
