"""Tests that every import of the package is a declared dependency.

The small version of `test_transcript`, which runs the README's commands in a new
environment.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {
    "datasets": "the library of the Hugging Face hub; part of the extra `partition`",
}
"""Imports that need no declaration, with the reason."""


@cache
def installed() -> Mapping[str, list[str]]:
    # At a test: the search takes 1 s of CPU time, and every worker imports this file.
    return packages_distributions()


def distributions(requirements: list[str]) -> set[str]:
    return {normalise(re.split(r"[\[<>=! ]", text)[0]) for text in requirements}


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


CORE = distributions(DECLARED["dependencies"])
EXTRAS = {
    name: distributions(needed)
    for name, needed in DECLARED["optional-dependencies"].items()
    if name not in ("dev", "docs", "benchmarks")
}
CORE_LAYERS = (
    "mathematics",
    "data",
    "privacy",
    "algorithms",
    "transforms",
    "engines",
    "metrics",
    "problems",
    "tuning",
)


def imports(file: Path, at_import_only: bool) -> Iterator[str]:
    """Yield the top-level packages that a module imports."""
    tree = ast.parse(file.read_text())
    for node in tree.body if at_import_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def foreign(file: Path, at_import_only: bool) -> set[str]:
    names = set(imports(file, at_import_only))
    names -= {"fedbilevel", *sys.stdlib_module_names, *OPTIONAL}
    return {
        normalise(installed()[name][0]) if name in installed() else name
        for name in names
    }


def modules(*directories: str) -> list[Path]:
    package = ROOT / "src" / "fedbilevel"
    return [
        file
        for directory in directories
        for file in (package / directory).rglob("*.py")
    ]


def test_every_import_is_declared_as_a_dependency_or_an_extra():
    declared = CORE.union(*EXTRAS.values())
    for file in modules("."):
        missing = foreign(file, at_import_only=False) - declared
        assert not missing, f"{file.relative_to(ROOT)} imports {missing}"


def test_the_core_is_imported_with_the_core_dependencies_alone():
    extra = CORE | EXTRAS["checkpoints"]
    for file in modules(*CORE_LAYERS):
        missing = foreign(file, at_import_only=True) - extra
        assert not missing, f"{file.relative_to(ROOT)} imports {missing}"
