"""Settings say in their types what they may be, and are pytrees.

`local_steps: Count = 1` is whole, at least 1, and part of a program's structure;
`multiplier: Rate = 10.0` is a number above 0, and may be traced. Checks, the tree and
the search for good settings read it from there, so that a setting of a new algorithm
needs a line of its own and no other.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from numbers import Integral
from types import NoneType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import numpy as np

from fedbilevel.mathematics.tree import Scalar

STATIC = "static"
"""Marks a setting that is part of the structure of a program, and no number in it."""


class SettingError(ValueError):
    """A setting that cannot be.

    Attributes:
        field: its name.
        cure: what to do about it, for whoever knows which setting is meant.

    Example:
        >>> SettingError("devices", "give at least 1, not 0.").field
        'devices'
    """

    def __init__(self, field: str, cure: str, words: str | None = None) -> None:
        super().__init__(words or f"{field}: {cure}")
        self.field, self.cure = field, cure


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be.

    Attributes:
        above: the largest that is too small.
        at_least: the smallest that it may be.
        below: the smallest that is too large.
        at_most: the largest that it may be.
        whole: whether it counts something.
        kind: what is wanted, in words; a number or a whole number if nothing is said.
        remark: why there is a limit or what happens at it, in words; nothing if that is
            plain.

    Example:
        >>> Range(above=0.0, at_most=1.0).words
        'above 0 and at most 1'
    """

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    whole: bool = False
    kind: str = ""
    remark: str = ""

    def __post_init__(self) -> None:
        if not self.kind:
            kind = "a whole number" if self.whole else "a number"
            object.__setattr__(self, "kind", kind)

    @property
    def words(self) -> str:
        """The bounds, as the rest of a sentence."""
        bounds = {
            "above": self.above,
            "at least": self.at_least,
            "below": self.below,
            "at most": self.at_most,
        }
        return " and ".join(
            f"{name} {one:.10g}" for name, one in bounds.items() if one is not None
        )

    def allow(self, value: Any) -> bool:
        """Return whether a number is in the range.

        Example:
            >>> Range(at_least=0.0, below=1.0).allow(1.0)
            False
        """
        return bool(
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )


@dataclass(frozen=True)
class FreshWeight:
    """Marks α such that α · learning_rate^power weighs a fresh gradient: at most 1.

    Example:
        >>> FreshWeight(power=2).power
        2
    """

    power: int


class Search(Enum):
    """Marks a setting that is worth a search, and says where.

    Example:
        >>> Search.CURVATURE.name
        'CURVATURE'
    """

    WIDE = "in a wide range around the given number: it has no natural unit"
    NEAR = "in a range around the given number"
    CURVATURE = "in units of 1 / (L · learning_rate)"


Count: TypeAlias = Annotated[int, Range(at_least=1.0, whole=True), STATIC]
"""How many there are of something; another number is another program."""
Switch: TypeAlias = Annotated[bool, STATIC]
"""Whether to do something; either is a program of its own."""
Rate: TypeAlias = Annotated[Scalar, Range(above=0.0)]
"""A number above 0: of a length, a weight, a size."""
Fraction: TypeAlias = Annotated[Scalar, Range(above=0.0, at_most=1.0)]
"""A part of a whole."""
UpperRate: TypeAlias = Annotated[
    Scalar, Range(at_least=0.0, remark="0 trains y with x fixed"), Search.WIDE
]
"""Multiplies the steps of x."""
LowerRate: TypeAlias = Annotated[Scalar, Range(above=0.0), Search.CURVATURE]
"""Multiplies the steps of y, or of another solution of equations in y's Hessian."""
ServerRate: TypeAlias = Annotated[Scalar, Range(above=0.0), Search.NEAR]
"""Multiplies the server's step along the mean of the devices' updates."""
Mixing: TypeAlias = Annotated[Scalar, Range(above=0.0), FreshWeight(power=1)]
"""Times the learning rate, the weight of a fresh gradient in a moving average."""
SquaredMixing: TypeAlias = Annotated[Scalar, Range(above=0.0), FreshWeight(power=2)]
"""Times the squared learning rate, the weight of a fresh gradient."""


Positive: TypeAlias = Annotated[float, Range(above=0.0)]
"""A number above 0 that is never traced."""
Seed: TypeAlias = Annotated[int, Range(at_least=0.0, at_most=2.0**32 - 1, whole=True)]
"""Of random choices."""


class Declaration(NamedTuple):
    """What the type of a setting says.

    Example:
        >>> Declaration(int, (Range(at_least=1.0), STATIC), optional=False).range.words
        'at least 1'
    """

    kind: Any
    marks: tuple[Any, ...]
    optional: bool

    @property
    def range(self) -> Range | None:
        """The numbers that it may be, if they are limited."""
        found: Range | None = self.find(Range)
        return found

    def find(self, kind: type) -> Any:
        """Return the mark of a kind, or nothing.

        Example:
            >>> Declaration(float, (Search.NEAR,), optional=False).find(Search).name
            'NEAR'
        """
        return next((one for one in self.marks if isinstance(one, kind)), None)


def declarations(cls: type) -> Mapping[str, Declaration]:
    """Return what the types of a dataclass's fields say, by their names.

    Example:
        >>> @dataclass(frozen=True)
        ... class Settings:
        ...     radius: Rate | None = None
        >>> declarations(Settings)["radius"].range.words
        'above 0'
    """
    return _declared_by(cls)


@cache
def _declared_by(cls: Any) -> Mapping[str, Declaration]:
    hints = get_type_hints(cls, include_extras=True)
    return {one.name: _declared(hints[one.name]) for one in fields(cls)}


def _declared(hint: Any) -> Declaration:
    # Rate | None has the mark inside the union; without one the mark is outside.
    parts = get_args(hint)
    optional = get_origin(hint) is not Annotated and NoneType in parts
    if optional:
        marked = [one for one in parts if get_origin(one) is Annotated]
        hint = marked[0] if len(marked) == 1 else hint
    if get_origin(hint) is not Annotated:
        return Declaration(hint, (), optional)
    kind, *marks = get_args(hint)
    return Declaration(kind, tuple(marks), optional)


def unmarked(hint: Any) -> Any:
    """Return a type without its marks.

    Example:
        >>> unmarked(Count | None)
        int | None
    """
    said = _declared(hint)
    return said.kind | None if said.optional and said.marks else said.kind


Class = TypeVar("Class", bound=type)


def register(cls: Class) -> Class:
    """Register a frozen dataclass as a pytree, its fields being the children.

    A field whose type is marked as static, such as `Count`, or with
    `metadata={"static": True}`, is part of the structure instead. Building the tree
    anew does not run `__init__`, so it may hold anything: tracers, the axes of a
    `vmap`, masks.

    Example:
        >>> import jax
        >>> from dataclasses import dataclass
        >>> @register
        ... @dataclass(frozen=True)
        ... class Settings:
        ...     rate: Rate
        ...     steps: Count = 1
        >>> jax.tree.map(lambda leaf: 2 * leaf, Settings(0.5, steps=3))
        Settings(rate=1.0, steps=3)
    """
    marked = [name for name, one in declarations(cls).items() if STATIC in one.marks]
    static = [
        f.name for f in fields(cls) if f.name in marked or f.metadata.get("static")
    ]
    dynamic = [f.name for f in fields(cls) if f.name not in static]

    def flatten(instance: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children = [
            (jax.tree_util.GetAttrKey(name), getattr(instance, name))
            for name in dynamic
        ]
        return children, tuple(getattr(instance, name) for name in static)

    def unflatten(structure: tuple[Any, ...], children: Iterable[Any]) -> Any:
        instance: Any = object.__new__(cls)
        for name, value in zip(
            (*dynamic, *static), (*children, *structure), strict=True
        ):
            object.__setattr__(instance, name, value)
        return instance

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def is_number(value: Any) -> bool:
    """Return whether a value is one concrete number, of whatever library.

    Example:
        >>> import jax.numpy as jnp
        >>> is_number(0.5), is_number(jnp.array(0.5)), is_number(jnp.ones(3))
        (True, True, False)
    """
    return (
        isinstance(value, float | int | np.number | np.ndarray | jax.Array)
        and not isinstance(value, jax.core.Tracer)
        and np.ndim(value) == 0
    )


def check_ranges(settings: Any) -> None:
    """Refuse settings that their types do not allow.

    Only concrete numbers are judged: a traced rate, or a grid of rates, has no value.

    Raises:
        SettingError: if a setting lies outside its range.
        TypeError: if a setting is of a kind that cannot serve.

    Example:
        >>> from fedbilevel import WarmStart
        >>> WarmStart(learning_rate=0.1, exchanges=0)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: WarmStart needs exchanges at least
        1 and whole, but it is 0.
    """
    owner = type(settings).__name__
    for name, one in declarations(type(settings)).items():
        value = getattr(settings, name)
        if value is None and one.optional:
            continue
        if one.kind is bool:
            _check_switch(owner, name, value)
        elif one.range is not None:
            _check_number(owner, name, value, one.range)


def _check_switch(owner: str, name: str, value: Any) -> None:
    # Any word would count as true.
    if not isinstance(value, bool):
        raise TypeError(
            f"{owner} needs true or false for {name}, but it was given {value!r}."
        )


def _check_number(owner: str, name: str, value: Any, allowed: Range) -> None:
    if allowed.whole:
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise _refusal(owner, name, value, allowed)
    elif value is None or isinstance(value, str | list | tuple | dict | bool | type):
        raise TypeError(
            f"{owner} needs {allowed.kind} for {name}, but it was given {value!r}."
        )
    if is_number(value) and not math.isfinite(value):
        raise SettingError(
            name,
            f"give a finite number, not {value}.",
            f"{owner} needs {name} to be finite, but it is {value}.",
        )
    if is_number(value) and not allowed.allow(value):
        raise _refusal(owner, name, value, allowed)


def _refusal(owner: str, name: str, value: Any, allowed: Range) -> SettingError:
    remark = f" ({allowed.remark})" if allowed.remark else ""
    whole = " and whole" if allowed.whole else ""
    return SettingError(
        name,
        f"give {allowed.kind}, {allowed.words}{remark}, not {value}.",
        f"{owner} needs {name} {allowed.words}{whole}{remark}, but it is {value!r}.",
    )
