"""The classes that a file can name: the library's, those of plug-ins, any by its place.

A plug-in is an installed package with entry points, such as

    [project.entry-points."fedbilevel.algorithms"]
    Penalty = "my_package.penalty:Penalty"

Without them a file may say where a class is: `name = "my_package.penalty:Penalty"`.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

import fedbilevel
import fedbilevel.problems
from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.server_optimiser import ServerOptimised
from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.simulation import Simulation
from fedbilevel.experiments.schema.auto import Auto
from fedbilevel.experiments.schema.engines import Sharded
from fedbilevel.experiments.schema.problems import CustomProblem
from fedbilevel.plugins import (
    import_object,
    load_plugins,
    warn_excluded,
    warn_name_taken,
)

AUTO = "auto"
"""The name of `Auto`."""
NEEDED = {
    "algorithm": (("init", "opening", "phases"),),
    "problem": (("build",), ("task",)),
}
"""The methods that a class of each table must have to be one, or else others."""
NAMED_OTHERWISE = (AutoFedBiO, ServerOptimised)
"""Algorithms that a file asks for in another way: "auto", `server_optimiser`."""


class UnknownNameError(ValueError):
    """A table whose name is none of those that there are.

    Example:
        >>> UnknownNameError("FedBio", ["FedBiO"]).known
        ['FedBiO']
    """

    def __init__(self, given: str, known: list[str]) -> None:
        super().__init__(f"{given!r} is none of {', '.join(known)}.")
        self.given, self.known = given, known


TABLES = ("algorithm", "problem", "engine")
"""The tables of a file that come in several kinds, in the order of their fields."""


@cache
def kinds(table: str) -> Mapping[str, type]:
    """Return the classes that a table of a file can be, by their names.

    A plug-in that cannot be loaded is warned about and left out.

    Example:
        >>> list(kinds("engine"))
        ['Simulation', 'Sharded', 'DebugSimulation']
        >>> "FedBiO" in kinds("algorithm")
        True
    """
    if table == "engine":
        own: list[type] = [Simulation, Sharded, DebugSimulation]
    elif table == "problem":
        names = fedbilevel.problems.__all__
        own = [*_public(table, fedbilevel.problems, names), CustomProblem]
    else:
        own = [Auto, *_public(table, fedbilevel, _algorithms())]
    found = {AUTO if one is Auto else one.__name__: one for one in own}
    for point, kind in load_plugins(f"fedbilevel.{table}s") if table in NEEDED else ():
        wrong = lacks(table, kind)
        if wrong is not None:
            warn_excluded(point, wrong)
        elif point.name in found:
            warn_name_taken(point, table)
        else:
            found[point.name] = kind
    return found


def _algorithms() -> list[str]:
    """Return the public names of classes that come from `algorithms`.

    To ask for all of them would import the whole library before every command.
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
    named = (getattr(face, name) for name in sorted(names))
    found = [one for one in named if lacks(table, one) is None]
    return [one for one in found if one not in NAMED_OTHERWISE]


def lacks(table: str, kind: Any) -> str | None:
    """Return why something is no class of a table; nothing if it is one.

    Example:
        >>> lacks("algorithm", dict)
        'it is no dataclass.'
    """
    if not isinstance(kind, type) or not is_dataclass(kind):
        return "it is no dataclass."
    if any(all(hasattr(kind, one) for one in names) for names in NEEDED[table]):
        return None
    missing = [one for one in NEEDED[table][0] if not hasattr(kind, one)]
    return f"it has no method {missing[0]}."


def kind_of(table: str, name: str) -> type:
    """Return the class that a file means by a name.

    Raises:
        UnknownNameError: if there is none of this name.
        ValueError: if a place is given where there is none, or one of another kind.

    Example:
        >>> kind_of("algorithm", "fedbilevel:FedBiO").__name__
        'FedBiO'
    """
    known = kinds(table)
    if name in known:
        return known[name]
    if ":" not in name or table not in NEEDED:
        raise UnknownNameError(name, list(known))
    kind = import_object(name)
    wrong = lacks(table, kind)
    if wrong is not None:
        raise ValueError(f"name is {name!r}, which is no {table}: {wrong}")
    if "." in kind.__qualname__:
        # A run writes down the class's own place, and could not be resumed.
        raise ValueError(
            f"name is {name!r}, a class that is defined inside of something else "
            f"({kind.__qualname__}); define it at the top of its module."
        )
    found: type = kind
    return found


def name_of(table: str, kind: type) -> str:
    """Return the name by which a file means a class.

    Example:
        >>> name_of("algorithm", Auto)
        'auto'
    """
    names = [name for name, one in kinds(table).items() if one is kind]
    return names[0] if names else f"{kind.__module__}:{kind.__qualname__}"
