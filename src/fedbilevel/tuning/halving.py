"""Successive halving: many settings for few rounds, the best of them for more."""

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

REDUCTION = 2
"""Of so many settings one goes on, for so many times the rounds."""
RUNGS = 3
"""Lengths of runs, at most: a quarter of all rounds, half, and all of them."""
SHORTEST = 10
"""Rounds of the shortest runs: fewer tell little, since z begins at 0 and y far off."""
GENERATION = 24
"""Settings that are proposed at once, at most: from 21 rounds on, 6 of 24 are run to
the end."""
GENERATIONS = 4
"""How often settings are proposed, at least: all but the first learn from others."""


class Rung(NamedTuple):
    """A step of a generation.

    Attributes:
        rounds: how long each setting is run.
        settings: how many are.
        seeds: with how many seeds each is.

    Example:
        >>> Rung(rounds=15, settings=24, seeds=1).work
        360
    """

    rounds: int
    settings: int
    seeds: int

    @property
    def work(self) -> int:
        """The rounds of all its runs together."""
        return self.rounds * self.settings * self.seeds


def rungs_of(rounds: int, settings: int, seeds: int) -> tuple[Rung, ...]:
    """Return the steps of a generation.

    The last has the full length and all seeds. Those before it have one seed: settings
    differ by more than seeds, and the rounds are better spent on longer runs.

    Args:
        rounds: of a full run.
        settings: of the generation.
        seeds: of a full run.

    Example:
        >>> [tuple(rung) for rung in rungs_of(rounds=60, settings=24, seeds=3)]
        [(15, 24, 1), (30, 12, 1), (60, 6, 3)]
        >>> [tuple(rung) for rung in rungs_of(rounds=15, settings=24, seeds=3)]
        [(10, 24, 1), (15, 12, 3)]
    """
    lengths = {
        min(rounds, max(SHORTEST, -(-rounds // REDUCTION**power)))
        for power in range(RUNGS)
    }
    return tuple(
        Rung(length, -(-settings // REDUCTION**place), seeds if length == rounds else 1)
        for place, length in enumerate(sorted(lengths))
    )


def generation_size(trials: int) -> int:
    """Return how many settings are proposed at once.

    Example:
        >>> generation_size(120), generation_size(10), generation_size(1)
        (24, 3, 1)
    """
    return max(1, min(GENERATION, -(-trials // GENERATIONS)))


def generations_of(
    trials: int, size: int, begun: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return the size of each generation.

    A generation that has begun keeps its size: its worse half was left behind, so no
    setting can join it later.

    Args:
        trials: settings of all generations together.
        size: of a generation, at most.
        begun: sizes of those that have begun.

    Example:
        >>> generations_of(50, 24), generations_of(10, 3)
        ((24, 24, 2), (3, 3, 3, 1))
        >>> generations_of(16, 4, begun=(4, 4, 4, 1)), generations_of(9, 3, (4, 4, 4))
        ((4, 4, 4, 1, 3), (4, 4, 4))
    """
    places = range(sum(begun), trials, size)
    return (*begun, *(min(size, trials - place) for place in places))


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


def work_of(rounds: int, settings: int, seeds: int) -> int:
    """Return the rounds that a generation runs, of all its settings together.

    Example:
        >>> work_of(rounds=60, settings=24, seeds=3)  # 24 · 15 + 12 · 30 + 6 · 60 · 3
        1800
    """
    return sum(rung.work for rung in rungs_of(rounds, settings, seeds))


def full_runs(rounds: int, trials: int, seeds: int) -> int:
    """Return how many full runs have as many rounds as a search, rounded up.

    Where the runs have fewer than 40 rounds, the shortest are more than a quarter of
    them, and a search costs more.

    Example:
        >>> [full_runs(rounds, trials=120, seeds=3) for rounds in (60, 40, 30, 20, 10)]
        [150, 150, 160, 240, 360]
    """
    sizes = generations_of(trials, generation_size(trials))
    return -(-sum(work_of(rounds, size, seeds) for size in sizes) // rounds)
