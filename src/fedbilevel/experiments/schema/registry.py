"""The types that a file can select: the library's, plug-ins, and `module:Class`.

A plug-in is an installed package with entry points, such as

    [project.entry-points."fedbilevel.algorithms"]
    Penalty = "my_package.penalty:Penalty"

Without an entry point, a file gives the import path of the class:
`name = "my_package.penalty:Penalty"`.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, partial
from importlib.resources import files
from types import ModuleType
from typing import Any

import fedbilevel
import fedbilevel.problems
from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.server_optimiser import WithServerOptimiser
from fedbilevel.algorithms.whole_batches import WithWholeBatches
from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.simulation import Simulation
from fedbilevel.experiments.schema.auto import Auto
from fedbilevel.experiments.schema.engines import Sharded
from fedbilevel.experiments.schema.problems import CustomProblem
from fedbilevel.plugins import import_object, with_plugins

AUTO = "auto"
"""The name of `Auto`."""
REQUIRED_METHODS = {
    "algorithm": (("init", "opening", "phases"),),
    "problem": (("build",), ("task",)),
}
"""Methods that a type of each table must have: one of the alternatives."""
UNLISTED = (AutoFedBiO, WithServerOptimiser, WithWholeBatches)
"""Algorithms that a file selects by "auto" and by keys beside `algorithm` instead."""


class UnknownNameError(ValueError):
    """An unknown name in an experiment file.

    Attributes:
        name: the unknown name.
        known: the known names.
        key: the key of the table that has the name; "" if the table itself is it.
    """

    def __init__(self, name: str, known: list[str], key: str = "name") -> None:
        super().__init__(f"{name!r} is none of {', '.join(known)}.")
        self.name, self.known, self.key = name, known, key


TABLES = ("algorithm", "problem", "engine")
"""The tables of a file with several types, in the order of their fields."""


@cache
def list_types(table: str) -> Mapping[str, type]:
    """Return the types that a file can select for a table, by name.

    A plug-in that cannot be loaded is omitted with a warning.

    Example:
        >>> list(list_types("engine"))
        ['Simulation', 'Sharded', 'DebugSimulation']
        >>> "FedBiO" in list_types("algorithm")
        True
    """
    if table == "engine":
        built_in: list[type] = [Simulation, Sharded, DebugSimulation]
    elif table == "problem":
        names = fedbilevel.problems.__all__
        built_in = [*_public(table, fedbilevel.problems, names), CustomProblem]
    else:
        built_in = [Auto, *_public(table, fedbilevel, _algorithms())]
    types = {AUTO if cls is Auto else cls.__name__: cls for cls in built_in}
    if table not in REQUIRED_METHODS:
        return types
    invalid = partial(invalid_reason, table)
    return with_plugins(types, f"fedbilevel.{table}s", table, invalid)


def _algorithms() -> list[str]:
    """Return the public names of classes of the package `algorithms`.

    They are read from the stub: `dir(fedbilevel)` has other classes too, and getting
    each to look at it would import the whole library before every command.
    """
    stub = (files("fedbilevel") / "__init__.pyi").read_text(encoding="utf-8")
    return [
        alias.name
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("algorithms.")
        for alias in node.names
        if alias.name[0].isupper()
    ]


def _public(table: str, face: ModuleType, names: Sequence[str]) -> list[type]:
    objects = (getattr(face, name) for name in sorted(names))
    types = [cls for cls in objects if invalid_reason(table, cls) is None]
    return [cls for cls in types if cls not in UNLISTED]


def invalid_reason(table: str, cls: Any) -> str | None:
    """Return the reason why an object is no type of a table; None if it is one.

    Example:
        >>> invalid_reason("algorithm", dict)
        'it is not a dataclass.'
    """
    if not isinstance(cls, type) or not is_dataclass(cls):
        return "it is not a dataclass."
    alternatives = REQUIRED_METHODS[table]
    if any(all(hasattr(cls, name) for name in names) for names in alternatives):
        return None
    missing = [name for name in alternatives[0] if not hasattr(cls, name)]
    return f"it has no method {missing[0]}."


def find_type(table: str, name: str) -> type:
    """Return the type that a file selects by a name or by `module:Class`.

    Raises:
        UnknownNameError: if the name is unknown.
        ValueError: if the class cannot be imported, or is no type of the table.

    Example:
        >>> find_type("algorithm", "fedbilevel:FedBiO").__name__
        'FedBiO'
    """
    known = list_types(table)
    if name in known:
        return known[name]
    if table == "algorithm" and name == AutoFedBiO.__name__:
        raise ValueError(
            f"name is {name!r}, which a file selects by {AUTO!r}, since its settings "
            f"depend on the rounds of the run; write {AUTO!r}."
        )
    if ":" not in name or table not in REQUIRED_METHODS:
        raise UnknownNameError(name, list(known))
    cls: type = import_object(name)
    reason = invalid_reason(table, cls)
    if reason is not None:
        raise ValueError(
            f"name is {name!r}, which cannot be used as {table}: {reason} Correct the "
            "class, or select another."
        )
    if "." in cls.__qualname__:
        # The run directory has module:Class, from which a nested class is not found.
        raise ValueError(
            f"name is {name!r}, a nested class ({cls.__qualname__}); define it at the "
            "top level of its module."
        )
    return cls


def name_of(table: str, cls: type) -> str:
    """Return the name by which a file selects a type.

    Example:
        >>> name_of("algorithm", Auto)
        'auto'
    """
    names = [name for name, known in list_types(table).items() if known is cls]
    return names[0] if names else f"{cls.__module__}:{cls.__qualname__}"
