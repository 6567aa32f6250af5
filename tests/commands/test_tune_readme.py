"""The README's file, tuned in five minutes, beside its hand-tuned rival."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

# The hand-tuned settings of `tools.images`.
RIVAL = (
    "algorithm:FedBiO --algorithm.learning-rate 1 --algorithm.upper-rate 10 "
    "--algorithm.lower-rate 0.5 --algorithm.adjoint-rate 0.5 "
    "--algorithm.local-steps 5 --algorithm.batch-size 16"
)
SECONDS = 300.0
"""Minutes of processor time; on two idle cores the clock shows no more."""


def typed(directory: Path, arguments: str) -> list[dict[str, Any]]:
    """Run a command as a user does, without the compiler flags of the test suite."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    result = subprocess.run(
        [sys.executable, "-m", "fedbilevel", *arguments.split()],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    if "new" in arguments:
        return []
    return [json.loads(line) for line in result.stdout.splitlines()]


def loss(directory: Path, arguments: str) -> float:
    *_, last = (one for one in typed(directory, arguments) if "metrics" in one)
    assert last["rounds"] == 60
    value: float = last["metrics"]["loss"]
    return value


def test_the_readmes_file_is_tuned_better_than_by_hand_in_five_minutes(tmp_path):
    typed(tmp_path, "new first --ready regularisation")
    by_hand = loss(tmp_path, f"run first.toml {RIVAL} --json")
    began = os.times()
    (content,) = typed(tmp_path, "tune first.toml --json")
    ended = os.times()
    user = ended.children_user - began.children_user
    assert user + ended.children_system - began.children_system < SECONDS
    tuned = loss(tmp_path, "run runs/first-tuned/best.toml --json")
    assert tuned == pytest.approx(content["values"][0], rel=1e-3)
    assert tuned <= by_hand
    # The same rival tuned by the machine: as many rounds, samples and bytes.
    (rival,) = typed(tmp_path, f"tune first.toml {RIVAL} --json")
    assert rival["values"][0] <= by_hand
