"""Successive halving: many settings for few rounds, the best of them for more."""

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

REDUCTION = 3
"""Of so many settings one goes on, for so many times the rounds."""
RUNGS = 3
"""Lengths of runs: a ninth of all rounds, a third, and all of them."""
SHORTEST = 10
"""Rounds of the shortest runs: fewer tell little, since z begins at 0 and y far off."""
GENERATION = 27
"""Settings that are proposed at once, at most: 3 of 27 are run to the end."""


class Rung(NamedTuple):
    """A step of a generation.

    Attributes:
        rounds: how long each setting is run.
        settings: how many are.

    Example:
        >>> Rung(rounds=20, settings=9).rounds
        20
    """

    rounds: int
    settings: int


def rungs_of(rounds: int, settings: int) -> tuple[Rung, ...]:
    """Return the steps of a generation; the last has the full length.

    Args:
        rounds: of a full run.
        settings: of the generation.

    Example:
        >>> [tuple(rung) for rung in rungs_of(rounds=90, settings=27)]
        [(10, 27), (30, 9), (90, 3)]
        >>> [tuple(rung) for rung in rungs_of(rounds=20, settings=27)]
        [(10, 27), (20, 9)]
    """
    lengths = {
        min(rounds, max(SHORTEST, -(-rounds // REDUCTION**power)))
        for power in range(RUNGS)
    }
    return tuple(
        Rung(length, -(-settings // REDUCTION**place))
        for place, length in enumerate(sorted(lengths))
    )


def generation_size(trials: int) -> int:
    """Return how many settings are proposed at once.

    A third of all, so that two generations learn from those before them, and at most
    27.

    Example:
        >>> generation_size(81), generation_size(10), generation_size(1)
        (27, 4, 1)
    """
    return max(1, min(GENERATION, -(-trials // REDUCTION)))


def generations_of(trials: int, size: int) -> tuple[int, ...]:
    """Return the size of each generation.

    Example:
        >>> generations_of(81, 27), generations_of(10, 4)
        ((27, 27, 27), (4, 4, 2))
    """
    return tuple(min(size, trials - begun) for begun in range(0, trials, size))


def survivors(
    scores: Mapping[int, float], count: int, always: int | None = None
) -> list[int]:
    """Return which settings go on: those with the lowest scores, never diverged ones.

    Args:
        scores: of the settings, by number; infinite where one diverged.
        count: how many go on, at most.
        always: one more, that goes on whatever its score is, unless it diverged.

    Example:
        >>> survivors({0: 3.0, 1: 1.0, 2: 2.0, 3: float("inf")}, 2)
        [1, 2]
        >>> survivors({0: 3.0, 1: 1.0, 2: 2.0, 3: float("inf")}, 2, always=0)
        [0, 1, 2]
    """
    finite = [number for number in scores if isfinite(scores[number])]
    best = sorted(finite, key=scores.__getitem__)[:count]
    return sorted({*best, *(number for number in finite if number == always)})


def work_of(rounds: int, settings: int) -> int:
    """Return the rounds that a generation runs, of all its settings together.

    Example:
        >>> work_of(rounds=60, settings=27)  # 27 · 10 + 9 · 20 + 3 · 60
        630
    """
    return sum(rung.rounds * rung.settings for rung in rungs_of(rounds, settings))
