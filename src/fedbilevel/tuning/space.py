"""Search spaces: settings of an algorithm with their ranges."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

import numpy as np

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.step_sizes import (
    settings_of,
    upper_steps,
    value_at,
    value_of,
    with_values,
)
from fedbilevel.mathematics.schedules import LearningRate, rate_at
from fedbilevel.mathematics.settings import FreshWeight, Role, is_number

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
            setting.name: float(value_at(self.algorithm, setting.name))
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
        moves_x = {item.name for item in upper_steps(self.algorithm)}
        upper = [item for item in self.settings if item.name in moves_x]
        scaled = [
            {item.name: item.inside(factor * start[item.name]) for item in upper}
            for factor in (FACTORS if upper else (1.0,))
        ]
        return [*first, *({**start, **theory, **values} for values in scaled)]

    def at(self, values: Mapping[str, float]) -> FederatedAlgorithm:
        """Return the algorithm with other values."""
        algorithm: FederatedAlgorithm = with_values(self.algorithm, values)
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
        item.containing(float(value_at(algorithm, item.name)))
        for item in _settings(algorithm, curvature, steps)
    ]
    if not settings:
        raise ValueError(
            f"{type(algorithm).__name__} has no rate that is a number, so there is no "
            "setting to tune. Pass the ranges to search as settings of tune."
        )
    return Space(algorithm, tuple(settings))


def _settings(algorithm: Any, curvature: float, steps: int) -> Iterator[Setting]:
    largest = _largest(value_of(algorithm, Role.LEARNING_RATE, 1.0), steps)
    moves_x = upper_steps(algorithm)
    for item in settings_of(algorithm):
        name, value, role, declaration = item
        if not is_number(value):
            continue
        mixing = declaration.find(FreshWeight)
        if mixing is not None:
            low, high = (part / largest**mixing.power for part in SHARES)
            yield Setting(name, low, high, limit=high)
        elif item in moves_x or role is Role.SERVER:
            factor = WIDE if role is Role.UPPER else NEAR
            around = float(value) or 1.0  # A rate of 0 gives no scale for a range.
            yield Setting(name, around / factor, around * factor)
        elif role in (Role.LOWER, Role.ADJOINT):
            low, high = (part / (curvature * largest) for part in STEPS)
            yield Setting(name, low, high, theory=1 / (curvature * largest))
        elif role in (Role.SERIES, Role.MEAN_SERIES):
            low, high = (part / curvature for part in SCALES)
            yield Setting(name, low, high, theory=0.9 / curvature)


def _largest(rate: LearningRate, steps: int) -> float:
    if not callable(rate):
        return float(rate)
    samples = np.unique(np.linspace(0, max(1, steps), SAMPLED).astype(int))
    return max(float(rate_at(rate, int(step))) for step in samples)
