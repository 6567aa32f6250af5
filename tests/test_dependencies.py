"""Every import of the package is declared, so that a fresh environment has it.

The small version of `test_transcript`, which types the README's commands in one.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = packages_distributions()
OPTIONAL = {
    "datasets": "of the Hugging Face hub; comes with the extra `partition`",
}
"""Imports that are asked for by a user who has the package, with the reason."""


def distributions(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=! ]", one)[0]) for one in requirements}


def normal(name: str) -> str:
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
    "algorithms",
    "engines",
    "metrics",
    "problems",
    "tuning",
)


def imports(file: Path, at_import_only: bool) -> Iterator[str]:
    """Yield the top-level packages that a module imports, of others."""
    tree = ast.parse(file.read_text())
    for node in tree.body if at_import_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def foreign(file: Path, at_import_only: bool) -> set[str]:
    names = set(imports(file, at_import_only))
    names -= {"fedbilevel", *sys.stdlib_module_names, *OPTIONAL}
    return {normal(INSTALLED[name][0]) if name in INSTALLED else name for name in names}


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
