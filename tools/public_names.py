"""mkdocs hook: warn about public names without an entry in the API reference.

`mkdocs build --strict` fails on a warning. Names are read from the source, so nothing
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
"""Modules and packages in which every name without a leading underscore is public,
unless the package has an `__all__`."""
ANCHOR = re.compile(rf'\bid="({PACKAGE}\.[\w.]+)"')

_anchors: set[str] = set()


def on_pre_build(**_: Any) -> None:
    """Clear the entries of an earlier build, since `mkdocs serve` builds repeatedly."""
    _anchors.clear()


def on_page_content(html: str, **_: Any) -> None:
    """Record the entries of a page."""
    _anchors.update(ANCHOR.findall(html))


def on_post_build(**_: Any) -> None:
    """Warn about missing entries."""
    for name in sorted(set(public_names()) - _anchors):
        LOG.warning(
            "%s is public and has no entry in the API reference. "
            "Add `::: %s` to a page under docs/reference.",
            name,
            name,
        )


def public_names(source: Path = SOURCE) -> Iterator[str]:
    """Yield every public name: those in an `__all__`, and all names of `WHOLE`."""
    for file in sorted((source / PACKAGE).rglob("__init__.py*")):
        module = ".".join(file.parent.relative_to(source).parts)
        for name in _listed(file):
            yield f"{module}.{name}"
    for whole in WHOLE:
        path = source.joinpath(*whole.split("."))
        if any(map(_listed, path.glob("__init__.py*"))):
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
