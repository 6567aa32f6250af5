"""Tests that the documentation imports only names in a package's `__all__`."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tools.public_names import public_names

WHOLE = ("fedbilevel.picture", "fedbilevel.tracking")
"""Packages whose modules are public too."""
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "src/fedbilevel/commands/templates").iterdir()),
]
IMPORT = re.compile(r"from (fedbilevel[\w.]*) import (\([^)]*\)|[^\n]*)")


def private_imports(text: str, public: set[str]) -> list[str]:
    private = []
    for module, names in IMPORT.findall(text):
        if module.startswith(WHOLE):
            continue
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names)):
            full = f"{module}.{name}"
            package = any(other.startswith(f"{full}.") for other in public)
            if full not in public and not package:
                private.append(full)
    return private


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_only_public_names_are_imported(page: Path):
    assert private_imports(page.read_text("utf-8"), set(public_names())) == []


def test_a_private_name_is_noticed():
    text = "from fedbilevel.engines.chunk import replicate\nfrom fedbilevel import run"
    assert private_imports(text, set(public_names())) == [
        "fedbilevel.engines.chunk.replicate"
    ]
