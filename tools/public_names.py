"""Hook: a public name without an entry in the API reference is a warning.

`mkdocs build --strict` fails for a warning. Names are read from the source, so nothing
is imported.
"""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.public_names")
SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "fedbilevel"
WHOLE = (
    "fedbilevel.picture",
    "fedbilevel.pictures",
    "fedbilevel.tracking",
)
"""Modules, and packages with all of theirs, of which all that does not begin with an
underscore is public, unless the package has an `__all__`."""
ANCHOR = re.compile(rf'\bid="({PACKAGE}\.[\w.]+)"')

_anchors: set[str] = set()


def on_pre_build(**_: Any) -> None:
    """Forget an earlier build, as `mkdocs serve` makes many."""
    _anchors.clear()


def on_page_content(html: str, **_: Any) -> None:
    """Remember what a page has an entry for."""
    _anchors.update(ANCHOR.findall(html))


def on_post_build(**_: Any) -> None:
    """Name what is missing."""
    for name in sorted(set(public_names()) - _anchors):
        LOG.warning(
            "%s is public and has no entry in the API reference; "
            "add `::: %s` to a page under docs/reference.",
            name,
            name,
        )


def public_names(source: Path = SOURCE) -> Iterator[str]:
    """Yield every public name: what an `__all__` lists, and all of `WHOLE`."""
    for file in sorted((source / PACKAGE).rglob("__init__.py*")):
        module = ".".join(file.parent.relative_to(source).parts)
        for name in _listed(file):
            yield f"{module}.{name}"
    for whole in WHOLE:
        path = source.joinpath(*whole.split("."))
        if (path / "__init__.py").exists() and _listed(path / "__init__.py"):
            continue
        for file in sorted(path.rglob("*.py")) or [path.with_suffix(".py")]:
            module = ".".join(file.relative_to(source).with_suffix("").parts)
            for name in _defined(file):
                yield f"{module}.{name}"


def _listed(file: Path) -> list[str]:
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List() as names):
                listed: list[str] = ast.literal_eval(names)
                return listed
    return []


def _defined(file: Path) -> Iterator[str]:
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                if not name.startswith("_"):
                    yield name
