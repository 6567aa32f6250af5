"""Step sizes and other settings that an algorithm declares by the types of its fields.

Nothing here depends on the names of fields: `Role` marks what a setting does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from math import inf
from typing import Any, NamedTuple

from fedbilevel.algorithms.warm_start import WarmStart
from fedbilevel.algorithms.wrapper import layers
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.schedules import rate_at
from fedbilevel.mathematics.settings import (
    Declaration,
    Role,
    declared_values,
    is_number,
)

NUMBER = Declaration(float, (), optional=False)
RATE = Declaration(float, (Role.LEARNING_RATE,), optional=False)


class DeclaredSetting(NamedTuple):
    """A setting of an algorithm, of the algorithm inside it, or of a part of them.

    Attributes:
        name: name of the field; dots separate nested fields.
        value: current value.
        role: effect of the setting; None without a mark.
        declaration: type of the setting.
    """

    name: str
    value: Any
    role: Role | None
    declaration: Declaration


def settings_of(algorithm: Any) -> Iterator[DeclaredSetting]:
    """Yield the settings of an algorithm, and of the algorithms inside it.

    Example:
        >>> from fedbilevel import Clip, FedBiO, with_transforms
        >>> wrapped = with_transforms(FedBiO(0.1), Clip(1.0))
        >>> [setting.name for setting in settings_of(wrapped) if setting.role][:3]
        ['algorithm', 'algorithm.learning_rate', 'algorithm.upper_rate']
    """
    prefix = ""
    for layer in layers(algorithm):
        if is_dataclass(layer):
            yield from _settings_in(layer, prefix, None)
        prefix += "algorithm."


def _settings_in(
    owner: Any, prefix: str, outer: Role | None
) -> Iterator[DeclaredSetting]:
    for name, value, declaration in _values(owner):
        role = declaration.role and (outer or declaration.role)
        yield DeclaredSetting(prefix + name, value, role, declaration)
        if isinstance(value, NeumannSeries | WarmStart | OptaxOptimiser):
            yield from _settings_in(value, f"{prefix}{name}.", role)


def _values(owner: Any) -> Iterator[tuple[str, Any, Declaration]]:
    if not isinstance(owner, OptaxOptimiser):
        yield from declared_values(owner)
        return
    # Its arguments are no fields.
    for name, value in owner.numbers.items():
        yield name, value, RATE if name == "learning_rate" else NUMBER


def value_of(algorithm: Any, role: Role, default: Any) -> Any:
    """Return the value of the innermost setting with a role, or a default.

    Example:
        >>> from fedbilevel import Clip, FedBiO, with_transforms
        >>> wrapped = with_transforms(FedBiO(0.1, batch_size=64), Clip(1.0))
        >>> value_of(wrapped, Role.BATCH_SIZE, 16)
        64
    """
    values = [item.value for item in settings_of(algorithm) if item.role is role]
    return values[-1] if values else default


def value_at(algorithm: Any, name: str) -> Any:
    """Return the value of a field; dots separate nested fields.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> value_at(LocalBSGM(0.1, NeumannSeries(5, 0.5)), "hypergradient.scale")
        0.5
    """
    for part in name.split("."):
        algorithm = {field: value for field, value, _ in _values(algorithm)}[part]
    return algorithm


def with_values(algorithm: Any, values: Mapping[str, Any]) -> Any:
    """Return an algorithm with other values; dots separate nested fields.

    Example:
        >>> from fedbilevel import LocalBSGM, NeumannSeries
        >>> algorithm = LocalBSGM(0.1, NeumannSeries(5, 0.5))
        >>> with_values(algorithm, {"hypergradient.scale": 0.3}).hypergradient
        NeumannSeries(terms=5, scale=0.3)
    """
    for name, value in values.items():
        algorithm = _with_value(algorithm, name.split("."), value)
    return algorithm


def _with_value(owner: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        value = _with_value(value_at(owner, name), rest, value)
    if isinstance(owner, OptaxOptimiser):
        return replace(owner, numbers={**owner.numbers, name: value})
    return replace(owner, **{name: value})


class StepSize(NamedTuple):
    """A number to which steps of a variable, or of a series, are proportional.

    Attributes:
        name: name of the setting; dots separate nested fields.
        role: variable or series that it moves.
        value: current value.
        rate: name of the setting that multiplies it, with " · "; empty if none does.
        factor: product of all numbers that multiply it.
        limit: largest value · factor, in units of 1 / L, with which gradient steps on a
            loss of curvature L converge.
    """

    name: str
    role: Role
    value: float
    rate: str
    factor: float
    limit: float


def step_sizes(algorithm: Any) -> list[StepSize]:
    """Return the step sizes of an algorithm at its first local step, those of x last.

    Example:
        >>> from fedbilevel import SimFBO
        >>> lower, *_ = step_sizes(SimFBO(0.1, lower_rate=3.0, server_rate=2.0))
        >>> lower.name, lower.value, lower.rate, lower.factor
        ('lower_rate', 3.0, 'learning_rate · ', 0.2)
    """
    settings = list(settings_of(algorithm))
    values = {setting.role: setting.value for setting in settings}
    rates = [item.name for item in settings if item.role is Role.LEARNING_RATE]
    product = " · ".join([*rates, ""])
    eta = float(rate_at(values.get(Role.LEARNING_RATE, 1.0), 0))
    factor, limit = eta, 2.0
    if values.get(Role.LOCAL_STEPS, 1) == 1:
        factor *= float(values.get(Role.SERVER, 1.0))
    if Role.LOWER_AVERAGE in values:
        # y ← y − a v, v ← (1 − b) v + b λ y: both roots lie within the unit circle if
        # a λ < 2 (2 − b) / b. With variance reduction v = λ y, and the limit is 2.
        weight = min(1.0, float(values[Role.LOWER_AVERAGE]) * eta)
        limit = 2 * (2 - weight) / weight
    moves = {
        Role.WARM_START: ("", 1.0, 2.0),
        Role.LOWER: (product, factor, limit),
        Role.ADJOINT: (product, factor, 2.0),
        Role.SERIES: ("", 1.0, 2.0),
        Role.MEAN_SERIES: ("", 1.0, 2.0),
        Role.UPPER: ("", 1.0, inf),
    }
    return [
        StepSize(item.name, role, float(rate_at(item.value, 0)), *move)
        for role, move in moves.items()
        for item in settings
        if item.role is role and (is_number(item.value) or role is Role.WARM_START)
    ]


def upper_steps(algorithm: Any) -> list[DeclaredSetting]:
    """Return the numbers to which steps of x are proportional.

    They are the learning rates of optimisers on the server if these are known, and the
    rates of local steps otherwise.

    Example:
        >>> from fedbilevel import FedBiO, optax_optimiser, with_server_optimiser
        >>> adam = optax_optimiser("adam", learning_rate=0.1)
        >>> wrapped = with_server_optimiser(FedBiO(0.5), adam)
        >>> [(setting.name, setting.value) for setting in upper_steps(wrapped)]
        [('server_optimiser.learning_rate', 0.1)]
    """
    numbers = [item for item in settings_of(algorithm) if is_number(item.value)]
    optimisers = [item for item in numbers if item.role is Role.OPTIMISER]
    return optimisers or [item for item in numbers if item.role is Role.UPPER]


def at_step(algorithm: Any, step: int) -> Any:
    """Return an algorithm with the learning rate of a local step, and no warm start.

    Example:
        >>> from fedbilevel import CubeRootDecay, FedBiO
        >>> at_step(FedBiO(CubeRootDecay(scale=1.0)), 6).learning_rate
        0.5
    """
    values: dict[str, Any] = {}
    for setting in settings_of(algorithm):
        if setting.role is Role.LEARNING_RATE:
            values[setting.name] = float(rate_at(setting.value, step))
        elif isinstance(setting.value, WarmStart):
            values[setting.name] = None
    return with_values(algorithm, values)
