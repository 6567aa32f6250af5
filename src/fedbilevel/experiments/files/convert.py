"""From the plain values of a file to dataclasses, strictly."""

from collections.abc import Callable
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import cattrs

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
from fedbilevel.mathematics.settings import unmarked
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.nearest import nearest_name

ESTIMATORS: dict[str, type] = {
    one.__name__: one for one in (NeumannSeries, ConjugateGradient)
}
"""The hypergradient estimators that a file can name."""
CHOICES: dict[str, Any] = {
    "algorithm": AlgorithmChoice,
    "problem": ProblemChoice,
    "engine": EngineChoice,
}
"""What the tables that come in several kinds are declared as."""


@cache
def converter() -> cattrs.Converter:
    """Return the converter of experiment files.

    Example:
        >>> from fedbilevel.experiments.schema import Partition
        >>> converter().structure({"devices": 4}, Partition).devices
        4
    """
    made = cattrs.Converter(forbid_extra_keys=True)
    made.register_structure_hook(int, _only(int, "a whole number"))
    made.register_structure_hook(str, _only(str, "text"))
    made.register_structure_hook(bool, _only(bool, "true or false"))
    made.register_structure_hook(float, lambda value, _: _number(value))
    made.register_structure_hook(Path, lambda value, _: _path(value))

    def register(types: tuple[Any, ...], hook: Callable[[Any, Any], Any]) -> None:
        made.register_structure_hook_func(lambda kind: unmarked(kind) in types, hook)

    def learning_rate(value: Any, _: Any) -> Any:
        if isinstance(value, dict):
            if "schedule" in value:
                return schedule_of(value)
            return made.structure(value, CubeRootDecay)
        return _number(value)

    register((Scalar, Scalar | None), lambda value, _: _number(value))
    register((unmarked(LearningRate),), learning_rate)
    register((OptaxOptimiser | None,), lambda value, _: _optimiser(value))
    made.register_structure_hook_func(
        _is_literal,
        lambda value, kind: _one_of(value, get_args(kind)),
    )
    register((Hypergradient,), _named(made, _estimator, list(ESTIMATORS)))
    for table, union in CHOICES.items():
        named = _named(made, partial(find_type, table), list(list_types(table)))
        register((union,), named)
    return made


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"the path of a file or directory is needed, not {value!r}.")
    return Path(value)


def _named(
    made: cattrs.Converter, find: Callable[[str], type], known: list[str]
) -> Callable[[Any, Any], Any]:
    """Return how to make one of several classes, by the `name` in its table."""

    def structure(value: Any, _: Any) -> Any:
        if value == AUTO and AUTO in known:
            return Auto()
        if not isinstance(value, dict):
            word = f', or "{AUTO}"' if AUTO in known else ""
            # As it is spelt, whatever the case of its letters.
            spelt = {one.lower(): one for one in known}
            named = spelt.get(str(value).lower()) or nearest_name(str(value), known)
            named = named or known[0]
            raise ValueError(
                f"a table with a name is needed{word}, but it is {value!r}; write "
                f'{{ name = "{named}" }}, with its settings beside the name.'
            )
        given = dict(value)
        if "name" not in given:
            raise ValueError(f"its name is missing, one of {', '.join(known)}.")
        name = given.pop("name")
        if not isinstance(name, str):
            raise UnknownNameError(str(name), known)
        return made.structure(given, find(name))

    return structure


def _estimator(name: str) -> type:
    if name not in ESTIMATORS:
        raise UnknownNameError(name, list(ESTIMATORS))
    return ESTIMATORS[name]


def _optimiser(value: Any) -> OptaxOptimiser:
    if not isinstance(value, dict):
        raise ValueError(
            f"the name of an optax optimiser is needed, but it is {value!r}."
        )
    for one in value.values():
        if isinstance(one, float):
            _number(one)
    return optimiser_of(value)


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _only(kind: type, wanted: str) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{wanted} is needed, but it is {value!r}.")
        return value

    return structure


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a number is needed, but it is {value!r}.")
    if not isfinite(value):
        raise ValueError(f"a finite number is needed, but it is {value!r}.")
    return float(value)


def _one_of(value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise UnknownNameError(str(value), list(map(str, known)))
    return value
