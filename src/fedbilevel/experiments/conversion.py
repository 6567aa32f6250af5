"""From the plain values of a file to dataclasses, strictly."""

from collections.abc import Callable
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import cattrs

from fedbilevel.experiments.choices import KINDS, Auto
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

AUTO = "auto"


def name_of(kind: type) -> str:
    """Return how files call a class.

    Example:
        >>> from fedbilevel import FedBiO
        >>> name_of(FedBiO), name_of(Auto)
        ('FedBiO', 'auto')
    """
    return AUTO if kind is Auto else kind.__name__


class UnknownNameError(ValueError):
    """A table whose name is none of those that there are.

    Example:
        >>> UnknownNameError("FedBio", ["FedBiO"]).known
        ['FedBiO']
    """

    def __init__(self, given: str, known: list[str]) -> None:
        super().__init__(f"{given!r} is none of {', '.join(known)}.")
        self.given, self.known = given, known


@cache
def converter() -> cattrs.Converter:
    """Return the converter of experiment files.

    Example:
        >>> from fedbilevel.experiments.choices import Partition
        >>> converter().structure({"devices": 4}, Partition).devices
        4
    """
    made = cattrs.Converter(forbid_extra_keys=True)
    made.register_structure_hook(int, _only(int, "a whole number"))
    made.register_structure_hook(str, _only(str, "text"))
    made.register_structure_hook(bool, _only(bool, "true or false"))
    made.register_structure_hook(float, lambda value, _: _number(value))
    made.register_structure_hook(Path, lambda value, _: _path(value))

    def register(kinds: tuple[Any, ...], hook: Callable[[Any, Any], Any]) -> None:
        made.register_structure_hook_func(lambda kind: unmarked(kind) in kinds, hook)

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
    register((Hypergradient,), _named(made, NeumannSeries | ConjugateGradient))
    for union in KINDS.values():
        register((union,), _named(made, union))
    return made


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"the path of a file or folder is needed, not {value!r}.")
    return Path(value)


def _named(made: cattrs.Converter, union: Any) -> Callable[[Any, Any], Any]:
    """Return how to make one of several classes, by the `name` in its table."""
    classes = {name_of(one): one for one in get_args(union)}

    def structure(value: Any, _: Any) -> Any:
        if value == AUTO and AUTO in classes:
            return Auto()
        if not isinstance(value, dict):
            word = f', or "{AUTO}"' if AUTO in classes else ""
            known = isinstance(value, str) and value in classes
            named = value if known else next(iter(classes))
            raise ValueError(
                f"a table with a name is needed{word}, but it is {value!r}; write "
                f'{{ name = "{named}" }}, with its settings beside the name.'
            )
        given = dict(value)
        if "name" not in given:
            raise ValueError(f"its name is missing, one of {', '.join(classes)}.")
        name = given.pop("name")
        if not isinstance(name, str) or name not in classes:
            raise UnknownNameError(str(name), list(classes))
        return made.structure(given, classes[name])

    return structure


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
