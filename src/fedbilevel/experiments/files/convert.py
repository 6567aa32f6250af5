"""Strict conversion of the values of an experiment file to dataclasses."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import cattrs

from fedbilevel.experiments.files.value_text import short_text
from fedbilevel.experiments.schema import (
    AlgorithmChoice,
    Auto,
    EngineChoice,
    ProblemChoice,
)
from fedbilevel.experiments.schema.registry import (
    AUTO,
    UnknownNameError,
    find_type,
    list_types,
)
from fedbilevel.mathematics.hypergradients import (
    ConjugateGradient,
    Hypergradient,
    NeumannSeries,
)
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser, optimiser_of
from fedbilevel.mathematics.optax_schedule import schedule_of
from fedbilevel.mathematics.schedules import CubeRootDecay, LearningRate
from fedbilevel.mathematics.settings import SettingError, unmarked
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.nearest import nearest_name

ESTIMATORS: dict[str, type] = {
    cls.__name__: cls for cls in (NeumannSeries, ConjugateGradient)
}
"""The hypergradient estimators that a file can select."""
CHOICES: dict[str, Any] = {
    "algorithm": AlgorithmChoice,
    "problem": ProblemChoice,
    "engine": EngineChoice,
}
"""The declared types of the tables that have several types."""


@cache
def converter() -> cattrs.Converter:
    """Return the converter of experiment files.

    Example:
        >>> from fedbilevel.experiments.schema import Partition
        >>> converter().structure({"devices": 4}, Partition).devices
        4
    """
    result = cattrs.Converter(forbid_extra_keys=True)
    result.register_structure_hook_factory(is_dataclass, partial(_table, result))
    result.register_structure_hook(int, lambda value, _: _whole(value))
    result.register_structure_hook(str, _only(str, "text in quotes"))
    result.register_structure_hook(bool, _only(bool, "true or false"))
    result.register_structure_hook(float, lambda value, _: _number(value))
    result.register_structure_hook(Path, lambda value, _: _path(value))

    def register(types: tuple[Any, ...], hook: Callable[[Any, Any], Any]) -> None:
        result.register_structure_hook_func(lambda hint: unmarked(hint) in types, hook)

    def learning_rate(value: Any, _: Any) -> Any:
        if isinstance(value, dict):
            if "schedule" in value:
                return schedule_of(value)
            return result.structure(value, CubeRootDecay)
        return _number(value)

    register((Scalar, Scalar | None), lambda value, _: _number(value))
    register((unmarked(LearningRate),), learning_rate)
    register((OptaxOptimiser | None,), lambda value, _: _optimiser(value))
    result.register_structure_hook_func(
        _is_literal,
        lambda value, hint: _one_of(value, get_args(hint)),
    )
    register((Hypergradient,), _by_name(result, _estimator, list(ESTIMATORS)))
    for table, union in CHOICES.items():
        find = partial(find_type, table)
        register((union,), _by_name(result, find, list(list_types(table))))
    return result


class ListOfTablesError(ValueError):
    """A list of tables, [[key]], in place of a table, [key]."""


def _table(base: cattrs.Converter, cls: type) -> Callable[[Any, Any], Any]:
    """Return the conversion of a table to a dataclass."""
    fill: Callable[[Any, Any], Any] = base.gen_structure_attrs_fromdict(cls)

    def structure(value: Any, hint: Any) -> Any:
        if not isinstance(value, dict):
            raise _refusal("a table", value)
        return fill(value, hint)

    return structure


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise _refusal("the path of a file or directory", value)
    return Path(value)


def _by_name(
    base: cattrs.Converter, find: Callable[[str], type], known: list[str]
) -> Callable[[Any, Any], Any]:
    """Return the conversion of a table to the type that its `name` selects."""

    def structure(value: Any, _: Any) -> Any:
        if value == AUTO and AUTO in known:
            return Auto()
        if not isinstance(value, dict):
            auto = f'"{AUTO}" or ' if AUTO in known else ""
            near = nearest_name(str(value), known) or known[-1]
            table = f'{{ name = "{near}" }}'
            wanted = f"{auto}a table such as {table} with the settings beside the name"
            raise _refusal(wanted, value)
        settings = dict(value)
        if "name" not in settings:
            raise SettingError(
                "name", f"the key is missing; give one of {', '.join(known)}."
            )
        name = settings.pop("name")
        if not isinstance(name, str):
            raise UnknownNameError(str(name), known)
        return base.structure(settings, find(name))

    return structure


def _estimator(name: str) -> type:
    if name not in ESTIMATORS:
        raise UnknownNameError(name, list(ESTIMATORS))
    return ESTIMATORS[name]


def _optimiser(value: Any) -> OptaxOptimiser:
    if not isinstance(value, dict):
        example = '{ name = "adam", learning_rate = 0.01 }'
        raise _refusal(f"a table such as {example}", value)
    for argument in value.values():
        if isinstance(argument, float):
            _number(argument)
    return optimiser_of(value)


def _is_literal(hint: Any) -> bool:
    return get_origin(hint) is Literal


def _only(cls: type, wanted: str) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not cls:
            raise _refusal(wanted, value)
        return value

    return structure


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _refusal("a whole number", value)
    _number(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal("a number", value)
    try:
        number = float(value)
    except OverflowError:
        raise _refusal("a number of at most 300 digits", value) from None
    if not isfinite(number):
        raise _refusal("a finite number", value)
    return number


def _one_of(value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise UnknownNameError(str(value), list(map(str, known)), key="")
    return value


def _refusal(wanted: str, value: Any) -> ValueError:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ListOfTablesError(f"give {wanted}, not a list of tables.")
    return ValueError(f"give {wanted}, not {short_text(value)}.")
