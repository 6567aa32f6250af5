"""An optax schedule that can be named in a file, compared and saved."""

import inspect
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from jaxtyping import Array, Int

from fedbilevel.error_text import first_line
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.schedules import Schedule
from fedbilevel.mathematics.settings import register
from fedbilevel.nearest import nearest


class Entry(NamedTuple):
    """A name and its value; a tuple of entries is a hashable table."""

    name: str | int
    value: Hashable


@register
@dataclass(frozen=True)
class OptaxSchedule:
    """An optax schedule by name and arguments; created with `optax_schedule`.

    Unlike schedules of optax, two schedules with the same name and arguments are equal,
    so the second needs no compilation.

    Attributes:
        name: name of a function of `optax.schedules`.
        arguments: arguments of that function, sorted by name.

    Raises:
        ValueError: if the schedule is unknown or rejects the arguments.

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
        _build(self)

    def __call__(self, step: int | Int[Array, ""], /) -> tree.Scalar:
        """Return η_t."""
        rate: tree.Scalar = _build(self)(step)
        return rate

    @property
    def table(self) -> dict[str, Any]:
        """The arguments as a table of an experiment file."""
        return {str(entry.name): _plain(entry.value) for entry in self.arguments}


def optax_schedule(name: str, /, **arguments: Any) -> OptaxSchedule:
    """Return an optax schedule that is equal to others with the same arguments.

    Args:
        name: name of a function of `optax.schedules`.
        arguments: arguments of that function: numbers, strings, lists and tables. A
            table with the key `schedule` is a schedule, for `join_schedules`.

    Example:
        >>> rate = optax_schedule("cosine_decay_schedule", init_value=0.2,
        ...                       decay_steps=8)
        >>> [round(float(rate(step)), 3) for step in (0, 4, 8)]
        [0.2, 0.1, 0.0]
    """
    return OptaxSchedule(name, _entries(arguments))


def schedule_of(table: Mapping[str, Any]) -> OptaxSchedule:
    """Return the schedule that a table of an experiment file specifies.

    Example:
        >>> table = {"schedule": "constant_schedule", "value": 0.2}
        >>> schedule_of(table) == optax_schedule("constant_schedule", value=0.2)
        True
    """
    arguments = dict(table)
    name = arguments.pop("schedule")
    if not isinstance(name, str):
        raise ValueError(
            f"schedule is {name!r}, expected the name of an optax schedule, such as "
            '"cosine_decay_schedule".'
        )
    return optax_schedule(name, **arguments)


@cache
def factories() -> dict[str, Callable[..., Schedule]]:
    """Return the functions of optax that return a schedule, by name.

    Example:
        >>> "exponential_decay" in factories()
        True
    """
    import optax  # imported here: it takes 0.1 s, and few programs need it

    return {
        name: function
        for name, function in vars(optax.schedules).items()
        if isinstance(function, types.FunctionType)
        and inspect.signature(function).return_annotation == optax.Schedule
    }


@cache
def _build(settings: OptaxSchedule) -> Schedule:
    known = factories()
    if settings.name not in known:
        raise ValueError(
            f"optax has no schedule {settings.name!r}; {nearest(settings.name, known)}"
        )
    factory = known[settings.name]
    parameters = inspect.signature(factory).parameters
    arguments = {str(entry.name): _thaw(entry.value) for entry in settings.arguments}
    for name in arguments:
        if name not in parameters:
            raise ValueError(
                f"{settings.name} of optax has no argument {name}; "
                f"{nearest(name, parameters)}"
            )
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            raise ValueError(f"{settings.name} of optax needs the argument {name}.")
    try:
        schedule = factory(**arguments)
        float(schedule(0))
    except Exception as error:
        # Factories check little: a wrong argument may raise any error.
        listed = ", ".join(f"{key} = {value!r}" for key, value in arguments.items())
        raise ValueError(
            f"{settings.name} of optax rejects its arguments {listed}: "
            f"{first_line(error).rstrip('.')}. Correct an argument."
        ) from error
    return schedule


def _entries(table: Mapping[Any, Any]) -> tuple[Entry, ...]:
    return tuple(Entry(name, _freeze(table[name])) for name in sorted(table, key=str))


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "schedule" in value:
            return schedule_of(value)
        # Keys of a file are strings, but optax's tables have steps as keys.
        return _entries({_parse_key(key): item for key, item in value.items()})
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


def _parse_key(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _thaw(value: Any) -> Any:
    """Return a value for optax: tables and lists, and schedules unchanged."""
    if not isinstance(value, tuple):
        return value
    if _is_table(value):
        return {entry.name: _thaw(entry.value) for entry in value}
    return [_thaw(item) for item in value]


def _plain(value: Any) -> Any:
    """Return a value for a file: tables with strings as keys, and lists."""
    if isinstance(value, OptaxSchedule):
        return {"schedule": value.name, **value.table}
    if not isinstance(value, tuple):
        return value
    if _is_table(value):
        return {str(entry.name): _plain(entry.value) for entry in value}
    return [_plain(item) for item in value]


def _is_table(value: tuple[Any, ...]) -> bool:
    return bool(value) and all(isinstance(item, Entry) for item in value)
