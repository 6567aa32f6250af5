"""Page with all keys of an experiment file, written from the classes of the schema.

    python -m tools.experiment_keys

writes `docs/how-to/experiment-keys.md`. `tests/docs/test_experiment_keys.py` fails if
the page differs from the classes.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import griffe

from fedbilevel.algorithms.warm_start import WarmStart
from fedbilevel.experiments.files.convert import ESTIMATORS
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import TABLES, list_types
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.settings import Declaration, declarations

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "experiment-keys.md"
HEADER = """\
# All keys of an experiment file

[Experiment files and commands](experiments.md) explains how to use these keys. Each key
is also an option: `local_steps` of the table `[algorithm]` is
`--algorithm.local-steps`. A key without a default is required. The default None means
that the key is absent.

This page is written by `python -m tools.experiment_keys` from the classes of the
[API reference](../reference/experiments.md).
"""
NAMES = {bool: "true or false", int: "integer", float: "number", str: "string"}
LINKS = {
    "a number or a schedule": "number or [schedule](schedules.md)",
    OptaxOptimiser: "[optimiser](server-optimisers.md)",
    WarmStart: "table [`WarmStart`](#warmstart)",
}


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEADER, *sections()])


def sections() -> Iterator[str]:
    """Yield the sections: top level, tables with one type, and the other tables."""
    yield section("## Top level", "", Experiment)
    for field in fields(Experiment):
        kind = declarations(Experiment)[field.name].kind
        if isinstance(kind, type) and is_dataclass(kind):
            yield section(f"## `[{field.name}]`", "", kind)
    for table in TABLES:
        types = {
            name: cls
            for name, cls in list_types(table).items()
            if cls.__module__.startswith("fedbilevel.")  # without installed plug-ins
        }
        names = ", ".join(f"`{name}`" for name in types)
        yield f"## `[{table}]`\n\nThe key `name` is one of {names}.\n"
        for name, cls in types.items():
            yield section(f"### {name}", f'`[{table}]` with `name = "{name}"`.', cls)
    yield "## Nested tables\n\nAlgorithms use these tables as values of keys.\n"
    series = "; `series` of FedNest takes the same keys without `name`"
    for name, cls in ESTIMATORS.items():
        use = f'`hypergradient = {{name = "{name}", ...}}`'
        use += f"{series}." if cls is NeumannSeries else "."
        yield section(f"### {name}", use, cls)
    yield section("### WarmStart", "`warm_start = {...}`.", WarmStart)


def section(title: str, use: str, cls: type) -> str:
    """Return a heading, a sentence and the table of the keys of a class."""
    rows = [row(cls, field) for field in fields(cls) if field.init]
    if not rows:
        return "\n".join([title, "", f"{use} No further keys.", ""])
    head = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([title, "", *([use, ""] if use else []), *head, *rows, ""])


def row(cls: type, field: "Field[Any]") -> str:
    """Return the row of a key."""
    declaration = declarations(cls)[field.name]
    cells = [
        f"`{field.name}`",
        type_text(field.name, declaration),
        default_text(field),
        meaning(cls, field.name),
    ]
    return f"| {' | '.join(cells)} |"


def type_text(name: str, declaration: Declaration) -> str:
    """Return the type of a key, with its range."""
    kind, allowed = declaration.kind, declaration.range
    if allowed is not None:
        unit = allowed.kind if allowed.kind in LINKS else ""
        number = LINKS.get(unit, "integer" if allowed.whole else "number")
        return f"{number} {allowed.bounds}"
    parts = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) in (Union, UnionType) and len(parts) == 1:
        return type_text(name, Declaration(parts[0], (), optional=True))
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{value}"`' for value in parts)
    if get_origin(kind) is tuple:
        return f"list of {NAMES[parts[0]]}s"
    if kind in NAMES or kind in LINKS:
        return NAMES.get(kind) or LINKS[kind]
    if kind is Path:
        return "path"
    if name in ("hypergradient", "series"):
        return "[table](#nested-tables)"
    return f"[table](#{name})"


def default_text(field: "Field[Any]") -> str:
    """Return the default of a key as TOML, or a reason why it has none."""
    if field.default is MISSING and field.default_factory is MISSING:
        return "required"
    if field.default_factory is not MISSING:
        default = type(field.default_factory()).__name__
        return f"`{default}`" if field.name in TABLES else "see the table"
    if field.default is None:
        return "None"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, str):
        return f'`"{field.default}"`'
    if isinstance(field.default, tuple):
        return f"`{list(field.default)}`"
    return f"`{field.default:g}`"


def meaning(cls: type, name: str) -> str:
    """Return the description of an attribute in the docstring of its class.

    Raises:
        KeyError: if the docstring does not describe the attribute.
    """
    docstring = griffe.Docstring(cls.__doc__ or "").parse("google", warnings=False)
    descriptions = {
        attribute.name: attribute.description
        for part in docstring
        if part.kind is griffe.DocstringSectionKind.attributes
        for attribute in part.value
    }
    text = " ".join(descriptions[name].split()).rstrip(".")
    # A star of y*(x) would be emphasis, and a bar the end of a cell.
    return re.sub(r"(?<!`)([*|])(?!`)", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
