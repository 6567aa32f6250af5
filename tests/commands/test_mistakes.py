"""A mistake on the command line ends with a message and exit code 2."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from fedbilevel.__main__ import COMMANDS
from tests.commands.mistakes import MISTAKES, Mistake
from tests.docs.test_messages import IMPERATIVES

pytestmark = pytest.mark.process

CURE = re.compile(rf"({IMPERATIVES})\b|did you mean \S+\?", re.IGNORECASE)
"""An imperative, or the suggestion of a name for a misspelt one."""
PLACE = re.compile(
    # Files and directories, options and arguments, keys, devices, variables.
    r"\.toml|\.py|\.json|line \d|runs/|/dev/|\.data/|: (nowhere|\.)"
    r"|--\w|\b[A-Z]{4,}\b|: jax|algorithm:"
    r"|(participants|problem|partition|federation|data)\b"
    r"|[Dd]evice|devices|: x$|_loss"
)


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
def test_a_mistake_is_answered_with_cause_place_and_cure(mistake: Mistake, answers):
    answer = answers[mistake.name]
    assert answer["code"] == 2, answer
    assert "Traceback" not in answer["message"]
    rest = answer["message"]
    # No text of the message counts as two parts.
    for part in (mistake.cure, mistake.cause, mistake.place):
        assert part in rest
        rest = rest.replace(part, "…", 1)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_has_three_parts(mistake: Mistake):
    assert mistake.cause
    assert CURE.match(mistake.cure)
    assert not CURE.match(mistake.cause)
    assert PLACE.search(mistake.place)


def test_no_mistake_was_lost():
    assert len({mistake.name for mistake in MISTAKES}) >= 133


def test_every_command_has_mistakes():
    commands = Counter(mistake.arguments.partition(" ")[0] for mistake in MISTAKES)
    assert set(COMMANDS) <= set(commands)


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
