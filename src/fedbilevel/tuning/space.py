"""The settings of an algorithm that are searched, each with a range."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from fedbilevel.algorithms.auto_fedbio import AutoFedBiO
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.server_optimiser import ServerOptimised
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
"""How far an upper rate may be from the given one, either way, at first."""
NEAR = 30.0
"""The same for rates whose unit is known: of Adam, of the server."""
STEPS = (0.03, 2.0)
"""Steps on y and z, in units of 1/L: beyond 2 they diverge."""
SCALES = (0.1, 2.0)
"""Scales of a Neumann series, in units of 1/L: beyond 2 it diverges."""
SHARES = (0.05, 1.0)
"""Weights of fresh gradients in momentum; 1 is no momentum, and more is impossible."""
FACTORS = (0.3, 1.0, 3.0, 10.0)
"""By which a given rate of x is multiplied in the first proposals."""
UPPER = ("upper_rate", "optimiser.learning_rate")
"""Settings that say how far x moves."""
SAMPLED = 256
"""Steps at which a schedule is looked at."""


class Setting(NamedTuple):
    """A number to search, in a range that is uniform in its logarithm.

    Attributes:
        name: the field of the algorithm, with dots before those of a field of a field.
        low: the smallest value at first.
        high: the largest value at first.
        limit: a value that is never exceeded, however the range is widened.
        theory: a value to try at first, if there is one.

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
        """Return the range with a value in it; it grows a hundredfold at most.

        Example:
            >>> Setting("upper_rate", 0.1, 1.0).containing(3.0).high
            3.0
        """
        low = max(min(self.low, value), self.low / WIDE) if value > 0 else self.low
        high = min(max(self.high, value), self.high * WIDE, self.limit)
        return self._replace(low=low, high=high)

    def widened(self, best: float) -> "Setting":
        """Return the range, ten times as wide at an edge that the best value is near.

        Near is the outer tenth of the range, in logarithms.
        """
        margin = (self.high / self.low) ** 0.1
        low = self.low / 10 if best <= self.low * margin else self.low
        high = self.high * 10 if best >= self.high / margin else self.high
        return self._replace(low=low, high=min(high, self.limit))

    def holds(self, value: float) -> bool:
        """Return whether a value is in the range."""
        return self.low <= value <= self.high

    def inside(self, value: float) -> float:
        """Return the value of the range that is nearest to another."""
        return min(max(value, self.low), self.high)


class Space(NamedTuple):
    """Settings of one algorithm, to be searched.

    Attributes:
        algorithm: the settings to begin with; what is not searched stays as it is here.
        settings: the numbers to search.

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
        """The values of the given algorithm, be they in their ranges or not."""
        return {
            one.name: float(_read(self.algorithm, one.name.split(".")))
            for one in self.settings
        }

    @property
    def proposals(self) -> list[dict[str, float]]:
        """What is tried first: the given values, and those of the theory.

        Theory has no value for a rate of x, so the given ones are multiplied. Where a
        given value is outside of its range, the nearest in it takes its place in all
        proposals but the first.
        """
        given = self.start
        start = {one.name: one.inside(given[one.name]) for one in self.settings}
        begin = [given] if given == start else [given, start]
        known = {one.name: one.theory for one in self.settings}
        theory = {name: value for name, value in known.items() if value is not None}
        if not theory:
            return begin
        # Settings of x alone have no theory; momentum is left as it is given.
        free = [one for one in self.settings if one.name.endswith(UPPER)]
        tried = [
            {one.name: one.inside(factor * start[one.name]) for one in free}
            for factor in (FACTORS if free else (1.0,))
        ]
        return [*begin, *({**start, **theory, **one} for one in tried)]

    def at(self, values: Mapping[str, float]) -> FederatedAlgorithm:
        """Return the algorithm with other values."""
        changed: Any = self.algorithm
        for name, value in values.items():
            changed = _written(changed, name.split("."), value)
        algorithm: FederatedAlgorithm = changed
        return algorithm


def search_space(
    algorithm: FederatedAlgorithm, *, curvature: float, steps: int
) -> Space:
    """Return the settings of an algorithm that matter, in ranges that hold the theory.

    Rates of y and z and the scale of a Neumann series are in units of 1/L; mixing
    weights are such that fresh gradients weigh at most 1; an upper rate has no natural
    unit, and is searched around the given one. The learning rate multiplies all of
    them, so it stays as it is, and so do counts: of steps, terms and examples. With an
    optimiser on the server its learning rate is searched in place of the upper rate.
    `AutoFedBiO` has an upper rate only: it finds the others.

    Args:
        algorithm: the settings to begin with.
        curvature: L, the largest curvature of the lower loss in y, of batches.
        steps: local steps of a run, for the largest rate of a schedule.

    Raises:
        ValueError: if the algorithm has none of these settings.

    Example:
        >>> from fedbilevel import FedBiO
        >>> space = search_space(FedBiO(0.5, upper_rate=3.0), curvature=2.0, steps=100)
        >>> [(one.name, one.low, one.high) for one in space.settings][:2]
        [('upper_rate', 0.03, 300.0), ('lower_rate', 0.03, 2.0)]
    """
    found = [
        one.containing(float(_read(algorithm, one.name.split("."))))
        for one in _settings(algorithm, curvature, steps)
    ]
    if not found:
        raise ValueError(
            f"{type(algorithm).__name__} has no rate that is a number, so there is "
            "nothing to tune; give a Space with the settings to search."
        )
    return Space(algorithm, tuple(found))


def _settings(algorithm: Any, curvature: float, steps: int) -> list[Setting]:
    if isinstance(algorithm, AutoFedBiO):
        return [_around(algorithm, "upper_rate", NEAR)]
    if isinstance(algorithm, ServerOptimised):
        inner = _settings(algorithm.algorithm, curvature, steps)
        inner = [one._replace(name=f"algorithm.{one.name}") for one in inner]
        if "learning_rate" not in getattr(algorithm.optimiser, "numbers", {}):
            return inner
        rate = _around(algorithm, "optimiser.learning_rate", NEAR)
        return [rate, *(one for one in inner if not one.name.endswith("upper_rate"))]
    largest = _largest(getattr(algorithm, "learning_rate", 1.0), steps)
    return [
        one
        for name, said in declarations(type(algorithm)).items()
        for one in _of_field(algorithm, name, said, curvature, largest)
    ]


def _of_field(
    algorithm: Any, name: str, said: Declaration, curvature: float, largest: float
) -> Sequence[Setting]:
    value = getattr(algorithm, name)
    if isinstance(value, NeumannSeries):
        low, high = (part / curvature for part in SCALES)
        return [Setting(f"{name}.scale", low, high, theory=0.9 / curvature)]
    if not is_number(value):
        return []
    mixing = said.find(FreshWeight)
    if mixing is not None:
        low, high = (part / largest**mixing.power for part in SHARES)
        return [Setting(name, low, high, limit=high)]
    match said.find(Search):
        case Search.WIDE:
            return [_around(algorithm, name, WIDE)]
        case Search.NEAR:
            return [_around(algorithm, name, NEAR)]
        case Search.CURVATURE:
            low, high = (part / (curvature * largest) for part in STEPS)
            return [Setting(name, low, high, theory=1 / (curvature * largest))]
    return []


def _around(algorithm: Any, name: str, factor: float) -> Setting:
    # A rate of 0 keeps x where it is: it says nothing about a good one.
    value = float(_read(algorithm, name.split("."))) or 1.0
    return Setting(name, value / factor, value * factor)


def _largest(rate: LearningRate, steps: int) -> float:
    if not callable(rate):
        return float(rate)
    places = np.unique(np.linspace(0, max(1, steps), SAMPLED).astype(int))
    return max(float(rate_at(rate, int(place))) for place in places)


def _read(holder: Any, path: Sequence[str]) -> Any:
    name, *rest = path
    held = _held(holder)[name]
    return _read(held, rest) if rest else held


def _written(holder: Any, path: Sequence[str], value: float) -> Any:
    name, *rest = path
    if rest:
        return _replaced(holder, name, _written(_held(holder)[name], rest, value))
    return _replaced(holder, name, value)


def _held(holder: Any) -> Mapping[str, Any]:
    # The arguments of an optimiser of optax are its own: it has no fields for them.
    if hasattr(holder, "numbers"):
        return dict(holder.numbers)
    return {one.name: getattr(holder, one.name) for one in fields(holder)}


def _replaced(holder: Any, name: str, value: Any) -> Any:
    if hasattr(holder, "numbers"):
        return replace(holder, numbers={**holder.numbers, name: value})
    assert is_dataclass(holder)
    assert not isinstance(holder, type)
    return replace(holder, **{name: value})
