"""Tests that the pages for operators name existing keys, defaults and commands."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.federation import FederationSettings
from tests.docs.pages import PAGES, ROOT
from tests.docs.test_words import keys
from tools.pages import blocks

OPERATIONS = [
    ROOT / "docs" / "operations.md",
    *sorted((ROOT / "docs" / "operations").glob("*.md")),
]
TABLES = ("federation", "evaluation", "checkpoints", "tracking", "data", "partition")
SECONDS = {"s": 1, "hour": 3600}


def nvflare_commands() -> set[str]:
    """Return the commands of `nvflare` on the pages, without arguments."""
    texts = [page.read_text("utf-8") for page in OPERATIONS]
    inline = [code for text in texts for code in re.findall(r"`(nvflare [^`]+)`", text)]
    code = [line for text in texts for b in blocks(text) for line in b.text.split("\n")]
    pattern = r"nvflare((?: [a-z][a-z-]+(?= |$)){1,2})"
    lines = [" ".join(line.split()) for line in (*inline, *code)]
    return {match[1].strip() for line in lines if (match := re.match(pattern, line))}


def test_keys_with_a_table_exist():
    known = set(keys(Experiment))
    pattern = rf"`((?:{'|'.join(TABLES)})\.[a-z_]+)`"
    places = [
        f"{page.name}: {key}"
        for page in PAGES
        for key in re.findall(pattern, page.read_text("utf-8"))
        if key not in known
    ]
    assert not places, places


def test_deadlines_have_the_defaults_of_the_settings():
    text = (ROOT / "docs" / "operations" / "day-by-day.md").read_text("utf-8")
    defaults = {field.name: field.default for field in fields(FederationSettings)}
    deadlines = re.findall(r"`federation\.(\w+)`, (\d+) (s|hour)\b", text)
    assert len(deadlines) == 4
    for name, number, unit in deadlines:
        assert defaults[name] == int(number) * SECONDS[unit], name


def test_keys_without_a_table_exist():
    # Keys of [federation] that the pages name alone, as in "while `quorum` sites".
    text = "".join(page.read_text("utf-8") for page in OPERATIONS)
    known = {key.rpartition(".")[2] for key in keys(Experiment)}
    for key in ("sites", "kit", "quorum", "attempts", "local_code", "weight_by_size"):
        assert f"`{key}`" in text
        assert key in known


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("command", sorted(nvflare_commands()))
def test_commands_of_nvflare_exist(command):
    result = subprocess.run(
        [Path(sys.executable).with_name("nvflare"), *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert command.split()[-1] in result.stdout


def test_commands_are_found():
    assert {"system status", "job list", "provision", "cert approve"} <= (
        nvflare_commands()
    )
