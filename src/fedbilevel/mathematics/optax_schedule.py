"""An optax schedule that can be named in a file, compared and written down."""

import inspect
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from jaxtyping import Array, Int

from fedbilevel.mathematics import tree
from fedbilevel.mathematics.schedules import Schedule
from fedbilevel.mathematics.settings import register
from fedbilevel.nearest import nearest


class Entry(NamedTuple):
    """A name and its value; a tuple of entries is a table that can be hashed.

    Example:
        >>> Entry("init_value", 0.1).value
        0.1
    """

    name: str | int
    value: Hashable


@register
@dataclass(frozen=True)
class OptaxSchedule:
    """A schedule of optax by the name of its factory and the factory's arguments.

    Unlike what the factory itself returns, two of the same name and arguments are
    equal, so the second compiles nothing anew. Make it with `optax_schedule`.

    Attributes:
        name: of a function of `optax.schedules`.
        arguments: of that function, in the order of their names.

    Raises:
        ValueError: if there is no such schedule, or not with such arguments.

    Example:
        >>> from fedbilevel import optax_schedule
        >>> optax_schedule("linear_schedule", init_value=0.2, end_value=0.0,
        ...                transition_step=10)
        Traceback (most recent call last):
        ...
        ValueError: linear_schedule of optax has no argument transition_step;
        did you mean transition_steps?
    """

    name: str = field(metadata={"static": True})
    arguments: tuple[Entry, ...] = field(metadata={"static": True})

    def __post_init__(self) -> None:
        _made(self)

    def __call__(self, step: int | Int[Array, ""], /) -> tree.Scalar:
        """Return η_t."""
        rate: tree.Scalar = _made(self)(step)
        return rate

    @property
    def table(self) -> dict[str, Any]:
        """The arguments as a table of plain values, as a file has them."""
        return {str(one.name): _plain(one.value) for one in self.arguments}


def optax_schedule(name: str, /, **arguments: Any) -> OptaxSchedule:
    """Return an optax schedule that is equal to another of the same arguments.

    Args:
        name: of a function of `optax.schedules`.
        arguments: of that function: numbers, words, lists and tables of these. A table
            with a `schedule` in it is a schedule itself, as `join_schedules` wants.

    Example:
        >>> rate = optax_schedule("cosine_decay_schedule", init_value=0.2,
        ...                       decay_steps=8)
        >>> [round(float(rate(step)), 3) for step in (0, 4, 8)]
        [0.2, 0.1, 0.0]
    """
    return OptaxSchedule(name, _entries(arguments))


def schedule_of(table: Mapping[str, Any]) -> OptaxSchedule:
    """Return the schedule that a table of a file stands for.

    Example:
        >>> table = {"schedule": "constant_schedule", "value": 0.2}
        >>> schedule_of(table) == optax_schedule("constant_schedule", value=0.2)
        True
    """
    given = dict(table)
    name = given.pop("schedule")
    if not isinstance(name, str):
        raise ValueError(f"the name of an optax schedule is needed, not {name!r}.")
    return optax_schedule(name, **given)


@cache
def factories() -> dict[str, Callable[..., Schedule]]:
    """Return the functions of optax that make a schedule, by name.

    Example:
        >>> "exponential_decay" in factories()
        True
    """
    import optax  # a tenth of a second, which few programs need

    return {
        name: one
        for name, one in vars(optax.schedules).items()
        if isinstance(one, types.FunctionType)
        and inspect.signature(one).return_annotation == optax.Schedule
    }


@cache
def _made(asked: OptaxSchedule) -> Schedule:
    known = factories()
    if asked.name not in known:
        raise ValueError(
            f"optax has no schedule {asked.name!r}; {nearest(asked.name, known)}"
        )
    make = known[asked.name]
    parameters = inspect.signature(make).parameters
    arguments = {str(one.name): _thawed(one.value) for one in asked.arguments}
    for name in arguments:
        if name not in parameters:
            raise ValueError(
                f"{asked.name} of optax has no argument {name}; "
                f"{nearest(name, parameters)}"
            )
    for name, one in parameters.items():
        if one.default is inspect.Parameter.empty and name not in arguments:
            raise ValueError(f"{asked.name} of optax needs the argument {name}.")
    try:
        made = make(**arguments)
        float(made(0))
    except Exception as error:
        # Factories check little: what is wrong may show as any error.
        raise ValueError(
            f"{asked.name} of optax refuses its arguments: {error}"
        ) from error
    return made


def _entries(table: Mapping[Any, Any]) -> tuple[Entry, ...]:
    return tuple(Entry(name, _frozen(table[name])) for name in sorted(table, key=str))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "schedule" in value:
            return schedule_of(value)
        # Keys of files are words, and those of optax's tables are steps.
        return _entries({_number_if(key): one for key, one in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _number_if(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _thawed(value: Any) -> Any:
    """Return what optax takes: tables and lists, schedules as they are."""
    if not isinstance(value, tuple):
        return value
    if _is_table(value):
        return {one.name: _thawed(one.value) for one in value}
    return [_thawed(one) for one in value]


def _plain(value: Any) -> Any:
    """Return what a file takes: tables with words for keys, and lists."""
    if isinstance(value, OptaxSchedule):
        return {"schedule": value.name, **value.table}
    if not isinstance(value, tuple):
        return value
    if _is_table(value):
        return {str(one.name): _plain(one.value) for one in value}
    return [_plain(one) for one in value]


def _is_table(value: tuple[Any, ...]) -> bool:
    return bool(value) and all(isinstance(one, Entry) for one in value)
