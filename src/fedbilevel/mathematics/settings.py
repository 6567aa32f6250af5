"""Annotated types of settings: ranges, static fields and search hints.

`batch_size: Count = 1` is an integer of at least 1 and part of a program's structure;
`drag: Rate = 10.0` is a number above 0 and may be traced. Validation, the pytree
registration, `tune` and the search for instabilities read these types, so a setting of
a new algorithm is declared in one line, under any name.
"""

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
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
"""Mark of a setting that is part of a program's structure: its value is not traced."""


LARGEST = 2**31 - 1
"""The largest whole number of a setting: programs count with 32-bit integers."""


class SettingError(ValueError):
    """An invalid setting.

    Attributes:
        field: name of the setting.
        cure: instruction without the name, for callers that print the key of a file.

    Example:
        >>> str(SettingError("devices", "give at least 1, not 0."))
        'devices: give at least 1, not 0.'
    """

    def __init__(self, field: str, cure: str, message: str | None = None) -> None:
        super().__init__(message or f"{field}: {cure}")
        self.field, self.cure = field, cure


@dataclass(frozen=True)
class Range:
    """The allowed range of a setting.

    Attributes:
        above: exclusive lower bound.
        at_least: inclusive lower bound.
        below: exclusive upper bound.
        at_most: inclusive upper bound.
        whole: True if the setting must be an integer.
        kind: expected value for messages, such as "a share"; by default "a number" or
            "a whole number".
        remark: reason for a bound or its effect, for messages; may be empty.

    Example:
        >>> Range(above=0.0, at_most=1.0).bounds
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
    def bounds(self) -> str:
        """The bounds as text for messages."""
        values = {
            "above": self.above,
            "at least": self.at_least,
            "below": self.below,
            "at most": self.at_most,
        }
        return " and ".join(
            f"{name} {value:.10g}"
            for name, value in values.items()
            if value is not None
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
    """Mark of a setting α: α · learning_rate^power, a fresh gradient's weight, is ≤ 1.

    Attributes:
        power: power of the learning rate.
    """

    power: int


class Role(Enum):
    """Mark of a setting by its effect, for `tune`, diagnosis and the baseline.

    The last mark of a type counts. The mark of a field counts for the marked settings
    of its value.
    """

    LEARNING_RATE = "learning rate"
    UPPER = "upper step"
    LOWER = "lower step"
    ADJOINT = "adjoint step"
    SERVER = "server step"
    OPTIMISER = "step of the server's optimiser"
    WARM_START = "step of the warm start"
    SERIES = "scale of the series"
    MEAN_SERIES = "scale of the series of mean products"
    LOWER_AVERAGE = "weight of a fresh lower gradient"
    LOCAL_STEPS = "number of local steps"
    BATCH_SIZE = "batch size"
    SAME_STEPS = "inner algorithm, with the same steps"


Count: TypeAlias = Annotated[int, Range(at_least=1.0, whole=True), STATIC]
"""An integer of at least 1; a change compiles another program."""
Repeats: TypeAlias = Annotated[
    int, Range(at_least=1.0, at_most=100_000.0, whole=True), STATIC
]
"""A number of exchanges or products, each an entry of a tuple: a job of another person
must not fill the memory of a site before the rules of the site are checked."""
LocalSteps: TypeAlias = Annotated[Count, Role.LOCAL_STEPS]
"""Number of steps between two exchanges, by which the server counts steps."""
BatchSize: TypeAlias = Annotated[Count, Role.BATCH_SIZE]
"""Number of examples in each batch of a step."""
Switch: TypeAlias = Annotated[bool, STATIC]
"""A boolean; a change compiles another program."""
Rate: TypeAlias = Annotated[Scalar, Range(above=0.0)]
"""A number above 0, such as a length, a weight or a size."""
SMALLEST_SCALE, LARGEST_SCALE = 1e-18, 1e18
"""Range of clips and noise: products of two are normal numbers in single precision.
Below 1.2e-38 noise is rounded to zero, above 3.4e38 sums overflow before the noise."""
Scale: TypeAlias = Annotated[
    Scalar,
    Range(
        at_least=SMALLEST_SCALE,
        at_most=LARGEST_SCALE,
        remark="beyond, noise is lost in single precision; choose other units",
    ),
]
"""A clip, or a multiplier of noise."""
Fraction: TypeAlias = Annotated[Scalar, Range(above=0.0, at_most=1.0)]
"""A number above 0 and at most 1."""
UpperRate: TypeAlias = Annotated[
    Scalar, Range(at_least=0.0, remark="0 trains y with x fixed"), Role.UPPER
]
"""Factor of the steps on x; the learning rate is another, if there is one."""
LowerRate: TypeAlias = Annotated[Rate, Role.LOWER]
"""Factor of the steps on y along ∇y g; they converge up to 2 / L for curvature L."""
AdjointRate: TypeAlias = Annotated[Rate, Role.ADJOINT]
"""Factor of the steps on z with y's Hessian; the server state's `adjoint` is z."""
ServerRate: TypeAlias = Annotated[Rate, Role.SERVER]
"""Factor of the server's step along the mean of the devices' updates."""
Mixing: TypeAlias = Annotated[Scalar, Range(above=0.0), FreshWeight(power=1)]
"""α of a moving average: α · learning_rate is the weight of a fresh gradient."""
LowerMixing: TypeAlias = Annotated[Mixing, Role.LOWER_AVERAGE]
"""`Mixing` of the gradient ∇y g: steps on y along its average may exceed 2 / L."""
SquaredMixing: TypeAlias = Annotated[Scalar, Range(above=0.0), FreshWeight(power=2)]
"""α of a moving average: α · learning_rate² is the weight of a fresh gradient."""


Positive: TypeAlias = Annotated[float, Range(above=0.0)]
"""A number above 0 that is never traced."""
Seed: TypeAlias = Annotated[int, Range(at_least=0.0, at_most=2.0**32 - 1, whole=True)]
"""Seed of random choices."""


class Declaration(NamedTuple):
    """The parsed type of a setting.

    Attributes:
        kind: type without marks.
        marks: marks of the type, such as a `Range`.
        optional: True if None is allowed.
    """

    kind: Any
    marks: tuple[Any, ...]
    optional: bool

    @property
    def range(self) -> Range | None:
        """The allowed range, if there is one."""
        mark: Range | None = self.find(Range)
        return mark

    @property
    def role(self) -> Role | None:
        """The role, if there is one."""
        mark: Role | None = self.find(Role)
        return mark

    def find(self, kind: type) -> Any:
        """Return the last mark of a type, or None.

        Example:
            >>> Declaration(float, (Role.UPPER,), optional=False).find(Role).name
            'UPPER'
        """
        marks = (mark for mark in reversed(self.marks) if isinstance(mark, kind))
        return next(marks, None)


def declarations(cls: type) -> Mapping[str, Declaration]:
    """Return the parsed types of a dataclass's fields by name.

    Example:
        >>> @dataclass(frozen=True)
        ... class Settings:
        ...     radius: Rate | None = None
        >>> declarations(Settings)["radius"].range.bounds
        'above 0'
    """
    return _declarations(cls)


@cache
def _declarations(cls: Any) -> Mapping[str, Declaration]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: _parse(hints[field.name]) for field in fields(cls)}


def _parse(hint: Any) -> Declaration:
    # In Rate | None, the mark is inside the union; in Rate, it is at the top level.
    parts = get_args(hint)
    optional = get_origin(hint) is not Annotated and NoneType in parts
    if optional:
        annotated = [part for part in parts if get_origin(part) is Annotated]
        hint = annotated[0] if len(annotated) == 1 else hint
    if get_origin(hint) is not Annotated:
        return Declaration(hint, (), optional)
    kind, *marks = get_args(hint)
    return Declaration(kind, tuple(marks), optional)


def attribute_help(cls: type, name: str) -> str:
    """Return the text of an attribute in the docstring of a class.

    Example:
        >>> attribute_help(FreshWeight, "power")
        'power of the learning rate.'
    """
    docstring = inspect.getdoc(cls) or ""
    match = re.search(rf"^    {name}: (.+(?:\n {{8}}.+)*)", docstring, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def declared_values(settings: Any) -> Iterator[tuple[str, Any, Declaration]]:
    """Yield the name, the value and the parsed type of each field of a dataclass.

    Example:
        >>> from fedbilevel import NeumannSeries
        >>> [(name, value) for name, value, _ in declared_values(NeumannSeries(5, 0.5))]
        [('terms', 5), ('scale', 0.5)]
    """
    for name, declaration in declarations(type(settings)).items():
        yield name, getattr(settings, name), declaration


def unmarked(hint: Any) -> Any:
    """Return a type without its marks.

    Example:
        >>> unmarked(Count | None)
        int | None
    """
    parsed = _parse(hint)
    return parsed.kind | None if parsed.optional and parsed.marks else parsed.kind


Class = TypeVar("Class", bound=type)


def register(cls: Class) -> Class:
    """Register a frozen dataclass as a pytree with its fields as children.

    A field with a static type, such as `Count`, or with `metadata={"static": True}`, is
    part of the structure instead. Unflattening does not run `__init__`, so fields may
    be any objects: tracers, the axes of a `vmap`, masks.

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
    parsed = declarations(cls)
    static = [
        f.name
        for f in fields(cls)
        if STATIC in parsed[f.name].marks or f.metadata.get("static")
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
    """Return whether a value is a concrete scalar of Python, NumPy or JAX.

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
    """Raise an error for settings outside the range of their types.

    Only concrete numbers are checked: a traced rate, or a grid of rates, has no value.

    Raises:
        SettingError: if a setting is outside its range.
        TypeError: if a setting has the wrong type.

    Example:
        >>> from fedbilevel import WarmStart
        >>> WarmStart(learning_rate=0.1, exchanges=0)
        Traceback (most recent call last):
        ...
        fedbilevel.mathematics.settings.SettingError: WarmStart: exchanges is 0,
        expected a whole number, at least 1 and at most 100000.
    """
    owner = type(settings).__name__
    for name, value, declaration in declared_values(settings):
        if value is None and declaration.optional:
            continue
        if declaration.kind is bool:
            _check_switch(owner, name, value)
        elif declaration.range is not None:
            _check_number(owner, name, value, declaration.range)


def _check_switch(owner: str, name: str, value: Any) -> None:
    # Any non-empty string would count as true.
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: {name} is {value!r}, expected true or false.")


def _check_number(owner: str, name: str, value: Any, allowed: Range) -> None:
    if allowed.whole:
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise _range_error(owner, name, value, allowed)
    elif value is None or isinstance(value, str | list | tuple | dict | bool | type):
        raise TypeError(f"{owner}: {name} is {value!r}, expected {allowed.kind}.")
    if is_number(value) and not math.isfinite(value):
        raise SettingError(
            name,
            f"give a finite number, not {value}.",
            f"{owner}: {name} is {value}, expected a finite number.",
        )
    if is_number(value) and not allowed.allow(value):
        raise _range_error(owner, name, value, allowed)
    if allowed.whole and allowed.at_most is None and value > LARGEST:
        raise SettingError(
            name,
            f"give a whole number, at most {LARGEST}, not {value}.",
            f"{owner}: {name} is {value}, expected at most {LARGEST}.",
        )


def _range_error(owner: str, name: str, value: Any, allowed: Range) -> SettingError:
    remark = f" ({allowed.remark})" if allowed.remark else ""
    expected = f"{allowed.kind}, {allowed.bounds}{remark}"
    return SettingError(
        name,
        f"give {expected}, not {value}.",
        f"{owner}: {name} is {value!r}, expected {expected}.",
    )
