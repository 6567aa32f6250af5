"""Search spaces: settings of an algorithm with their ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.server_optimiser import WithServerOptimiser
from fedbilevel.algorithms.wrapper import layers
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.mathematics.schedules import LearningRate, rate_at
from fedbilevel.mathematics.settings import (
    Declaration,
    FreshWeight,
    Search,
    declarations,
    is_number,
)

WIDE = 100.0
"""The factor between the initial upper rate and the edges of its first range."""
NEAR = 30.0
"""The same factor for rates with a known scale: those of Adam and of the server."""
STEPS = (0.03, 2.0)
"""The range of rates of y and z, in units of 1/L: above 2 they diverge."""
SCALES = (0.1, 2.0)
"""The range of scales of a Neumann series, in units of 1/L: above 2 it diverges."""
SHARES = (0.05, 1.0)
"""The range of weights of fresh gradients in momentum; 1 is no momentum."""
FACTORS = (0.3, 1.0, 3.0, 10.0)
"""The factors of the initial rate of x in the first proposals."""
UPPER = ("upper_rate", "optimiser.learning_rate")
"""The settings that determine the steps of x."""
SAMPLED = 256
"""The number of steps at which a schedule is evaluated."""


class Setting(NamedTuple):
    """A number to search, in a range with a logarithmic scale.

    Attributes:
        name: field of the algorithm; dots separate nested fields.
        low: smallest value of the first range.
        high: largest value of the first range.
        limit: largest value of any widened range.
        theory: value of theory, tried in the first generation, or None.

    Example:
        >>> Setting("upper_rate", 0.01, 100.0).widened(best=90.0).high
        1000.0
    """

    name: str
    low: float
    high: float
    limit: float = inf
    theory: float | None = None

    def containing(self, value: float) -> "Setting":
        """Return the range, extended to contain a value, at most a hundredfold.

        Example:
            >>> Setting("upper_rate", 0.1, 1.0).containing(3.0).high
            3.0
        """
        low = max(min(self.low, value), self.low / WIDE) if value > 0 else self.low
        high = min(max(self.high, value), self.high * WIDE, self.limit)
        return self._replace(low=low, high=high)

    def widened(self, best: float) -> "Setting":
        """Return the range, widened tenfold at an edge near the best value.

        A value is near an edge if it is in the outer tenth of the logarithmic range.
        """
        margin = (self.high / self.low) ** 0.1
        low = self.low / 10 if best <= self.low * margin else self.low
        high = self.high * 10 if best >= self.high / margin else self.high
        return self._replace(low=low, high=min(high, self.limit))

    def holds(self, value: float) -> bool:
        """Return whether a value is in the range."""
        return self.low <= value <= self.high

    def inside(self, value: float) -> float:
        """Return the nearest value in the range."""
        return min(max(value, self.low), self.high)


class Space(NamedTuple):
    """A search space: settings of one algorithm.

    Attributes:
        algorithm: algorithm with the initial settings; others keep their values.
        settings: settings to search.

    Example:
        >>> from fedbilevel import FedBiO
        >>> space = Space(FedBiO(1.0), (Setting("upper_rate", 0.1, 10.0),))
        >>> space.start, space.at({"upper_rate": 3.0}).upper_rate
        ({'upper_rate': 1.0}, 3.0)
    """

    algorithm: FederatedAlgorithm
    settings: tuple[Setting, ...]

    @property
    def start(self) -> dict[str, float]:
        """The values of the initial algorithm, inside or outside of their ranges."""
        return {
            setting.name: float(_read(self.algorithm, setting.name.split(".")))
            for setting in self.settings
        }

    @property
    def proposals(self) -> list[dict[str, float]]:
        """The first proposals: the initial values, and those of theory.

        Theory has no value for a rate of x, so the initial rate is multiplied by
        several factors. If an initial value is outside of its range, all proposals but
        the first use the nearest value in the range.
        """
        initial = self.start
        start = {item.name: item.inside(initial[item.name]) for item in self.settings}
        first = [initial] if initial == start else [initial, start]
        known = {item.name: item.theory for item in self.settings}
        theory = {name: value for name, value in known.items() if value is not None}
        if not theory:
            return first
        # Theory has no values for rates of x; momentum keeps its initial value.
        upper = [item for item in self.settings if item.name.endswith(UPPER)]
        scaled = [
            {item.name: item.inside(factor * start[item.name]) for item in upper}
            for factor in (FACTORS if upper else (1.0,))
        ]
        return [*first, *({**start, **theory, **values} for values in scaled)]

    def at(self, values: Mapping[str, float]) -> FederatedAlgorithm:
        """Return the algorithm with other values."""
        result: Any = self.algorithm
        for name, value in values.items():
            result = _write(result, name.split("."), value)
        algorithm: FederatedAlgorithm = result
        return algorithm


def search_space(
    algorithm: FederatedAlgorithm, *, curvature: float, steps: int
) -> Space:
    """Return the search space of an algorithm, with ranges around values of theory.

    Ranges of the rates of y and z and of the scale of a Neumann series are in units of
    1/L. Mixing weights give fresh gradients a weight of at most 1. An upper rate has no
    natural unit, so its range is centred at the initial value. The learning rate is
    not searched, because it multiplies all rates; neither are numbers of steps, terms
    and examples. With an optimiser on the server, its learning rate is searched instead
    of the upper rate. `AutoFedBiO` has only an upper rate, as it measures the others.

    Args:
        algorithm: algorithm with the initial settings.
        curvature: largest curvature L of the lower loss in y, over batches.
        steps: number of local steps of a run, for the largest rate of a schedule.

    Raises:
        ValueError: if the algorithm has none of these settings.

    Example:
        >>> from fedbilevel import FedBiO
        >>> space = search_space(FedBiO(0.5, upper_rate=3.0), curvature=2.0, steps=100)
        >>> [(item.name, item.low, item.high) for item in space.settings][:2]
        [('upper_rate', 0.03, 300.0), ('lower_rate', 0.03, 2.0)]
    """
    settings = [
        item.containing(float(_read(algorithm, item.name.split("."))))
        for item in _settings(algorithm, curvature, steps)
    ]
    if not settings:
        raise ValueError(
            f"{type(algorithm).__name__} has no rate that is a number, so there is no "
            "setting to tune. Pass a Space with the settings to search."
        )
    return Space(algorithm, tuple(settings))


def _settings(algorithm: Any, curvature: float, steps: int) -> list[Setting]:
    if isinstance(algorithm, AutoFedBiO):
        return [_around(algorithm, "upper_rate", NEAR)]
    if len(list(layers(algorithm))) > 1:
        inner = _settings(algorithm.algorithm, curvature, steps)
        inner = [item._replace(name=f"algorithm.{item.name}") for item in inner]
        if not isinstance(algorithm, WithServerOptimiser):
            return inner
        if "learning_rate" not in getattr(algorithm.optimiser, "numbers", {}):
            return inner
        rate = _around(algorithm, "optimiser.learning_rate", NEAR)
        return [rate, *(item for item in inner if not item.name.endswith("upper_rate"))]
    largest = _largest(getattr(algorithm, "learning_rate", 1.0), steps)
    return [
        setting
        for name, declaration in declarations(type(algorithm)).items()
        for setting in _of_field(algorithm, name, declaration, curvature, largest)
    ]


def _of_field(
    algorithm: Any,
    name: str,
    declaration: Declaration,
    curvature: float,
    largest: float,
) -> Sequence[Setting]:
    value = getattr(algorithm, name)
    if isinstance(value, NeumannSeries):
        low, high = (part / curvature for part in SCALES)
        return [Setting(f"{name}.scale", low, high, theory=0.9 / curvature)]
    if not is_number(value):
        return []
    mixing = declaration.find(FreshWeight)
    if mixing is not None:
        low, high = (part / largest**mixing.power for part in SHARES)
        return [Setting(name, low, high, limit=high)]
    match declaration.find(Search):
        case Search.WIDE:
            return [_around(algorithm, name, WIDE)]
        case Search.NEAR:
            return [_around(algorithm, name, NEAR)]
        case Search.CURVATURE:
            low, high = (part / (curvature * largest) for part in STEPS)
            return [Setting(name, low, high, theory=1 / (curvature * largest))]
    return []


def _around(algorithm: Any, name: str, factor: float) -> Setting:
    # A rate of 0 gives no scale for a range.
    value = float(_read(algorithm, name.split("."))) or 1.0
    return Setting(name, value / factor, value * factor)


def _largest(rate: LearningRate, steps: int) -> float:
    if not callable(rate):
        return float(rate)
    samples = np.unique(np.linspace(0, max(1, steps), SAMPLED).astype(int))
    return max(float(rate_at(rate, int(step))) for step in samples)


def _read(parent: Any, path: Sequence[str]) -> Any:
    name, *rest = path
    value = _values(parent)[name]
    return _read(value, rest) if rest else value


def _write(parent: Any, path: Sequence[str], value: float) -> Any:
    name, *rest = path
    if rest:
        return _replace(parent, name, _write(_values(parent)[name], rest, value))
    return _replace(parent, name, value)


def _values(parent: Any) -> Mapping[str, Any]:
    # An optimiser of optax has its arguments in `numbers`, not in fields.
    if hasattr(parent, "numbers"):
        return dict(parent.numbers)
    return {field.name: getattr(parent, field.name) for field in fields(parent)}


def _replace(parent: Any, name: str, value: Any) -> Any:
    if hasattr(parent, "numbers"):
        return replace(parent, numbers={**parent.numbers, name: value})
    assert is_dataclass(parent)
    assert not isinstance(parent, type)
    return replace(parent, **{name: value})
