"""Tests of the examples: each runs as a program and prints its page's results."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiling import QUICKLY
from tests.waiting import HANG

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run_example(example: str, directory: Path) -> str:
    """Return the output of an example, compiled without optimisation."""
    process = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / example],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "XLA_FLAGS": QUICKLY},
        timeout=HANG,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def numbers(pattern: str, output: str) -> list[float]:
    return [float(text) for text in re.findall(pattern, output)]


@pytest.mark.nightly
def test_penalties_tuned_pixel_by_pixel_beat_any_single_one(tmp_path):
    output = run_example("tune_regularisation.py", tmp_path)
    *single, tuned = numbers(r"validation loss (\S+),", output)
    assert len(single) == 4
    assert tuned < min(single)
    assert numbers(r"test accuracy (\S+)", output)[-1] > 0.89


@pytest.mark.nightly
def test_weighing_labels_finds_the_wrong_ones_and_is_worth_it(tmp_path):
    output = run_example("clean_labels.py", tmp_path)
    (area,) = numbers(r"area under the curve: (\S+)", output)
    assert area > 0.97
    wrong, caught = numbers(r"of which wrong: (\d+)", output)
    (distrusted,) = numbers(r"distrusted: (\d+)", output)
    assert caught > 0.9 * wrong
    assert caught > 0.9 * distrusted
    equal, tuned, *_ = numbers(r"test accuracy, .*: (\S+)", output)
    assert tuned > equal + 0.01


def test_the_two_bad_instruments_lose_their_weight_in_a_resumed_run(tmp_path):
    output = run_example("custom_problem.py", tmp_path)
    assert "stopped after 120 rounds\nresumed with round 121\n" in output
    assert "smallest weights: 2 5" in output
    equal, tuned = numbers(r"error on checked readings, .*: (\S+)", output)
    assert tuned < 0.7 * equal


@pytest.mark.nightly
def test_settings_have_the_documented_effects(tmp_path):
    output = run_example("choose_settings.py", tmp_path)
    assert numbers(r"L is (\S+), 1", output) == pytest.approx([2.04, 1.14], abs=0.02)
    errors = numbers(r"all examples, .* relative error (\S+)%", output)
    strong, weak = errors[:4], errors[4:]
    assert strong == sorted(strong, reverse=True)
    assert weak == sorted(weak, reverse=True)
    assert strong[2] < 1
    assert weak[2] > 10
    noise = numbers(r"batches of .* relative error (\S+)%", output)
    assert noise[0] > 2 * noise[1] > 4 * noise[2]
    losses = dict(re.findall(r"lower_rate (\S+): validation loss (\S+)", output))
    assert float(losses["0.3"]) < float(losses["0.03"])
    assert not float(losses["10.0"]) < 10  # not a number
    one, twenty = numbers(r"local steps: (\d+) exchanges", output)
    assert twenty < one / 4


def test_every_example_is_tested_and_has_its_tutorial():
    tested = Path(__file__).read_text()
    pages = "".join(page.read_text() for page in ROOT.glob("docs/tutorials/*.md"))
    for example in EXAMPLES.glob("*.py"):
        assert f'run_example("{example.name}"' in tested
        assert f"`examples/{example.name}`" in pages
