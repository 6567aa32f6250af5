"""Successive halving: many settings for few rounds, the best of them for more."""

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

REDUCTION = 2
"""The factor between two rungs: half of the settings run twice the rounds."""
RUNGS = 3
"""The most lengths of runs: a quarter of all rounds, half, and all of them."""
SHORTEST = 10
"""Rounds of the shortest runs: fewer show little, since z starts at 0 and y far off."""
GENERATION = 24
"""The most settings of a generation: with 21 rounds or more, 6 of 24 run to the
end."""
GENERATIONS = 4
"""The fewest generations: all but the first use the results of earlier ones."""


class Rung(NamedTuple):
    """A rung of successive halving: runs of one length.

    Attributes:
        rounds: number of rounds of each run.
        settings: number of settings.
        seeds: number of seeds of each setting.

    Example:
        >>> Rung(rounds=15, settings=24, seeds=1).work
        360
    """

    rounds: int
    settings: int
    seeds: int

    @property
    def work(self) -> int:
        """The number of rounds of all its runs."""
        return self.rounds * self.settings * self.seeds


def rungs_of(rounds: int, settings: int, seeds: int) -> tuple[Rung, ...]:
    """Return the rungs of a generation.

    The last rung has the full length and all seeds. Earlier rungs have one seed:
    settings differ by more than seeds, and longer runs are a better use of rounds.

    Args:
        rounds: number of rounds of a full run.
        settings: number of settings of the generation.
        seeds: number of seeds of a full run.

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
        Rung(length, -(-settings // REDUCTION**index), seeds if length == rounds else 1)
        for index, length in enumerate(sorted(lengths))
    )


def generation_size(trials: int) -> int:
    """Return the number of settings of a generation.

    Example:
        >>> generation_size(120), generation_size(10), generation_size(1)
        (24, 3, 1)
    """
    return max(1, min(GENERATION, -(-trials // GENERATIONS)))


def generations_of(
    trials: int, size: int, started: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return the size of each generation.

    A generation that has started keeps its size: its worse half was stopped, so no
    setting can join it later.

    Args:
        trials: number of settings of all generations together.
        size: largest size of a generation.
        started: sizes of the generations that have started.

    Example:
        >>> generations_of(50, 24), generations_of(10, 3)
        ((24, 24, 2), (3, 3, 3, 1))
        >>> generations_of(16, 4, started=(4, 4, 4, 1)), generations_of(9, 3, (4, 4, 4))
        ((4, 4, 4, 1, 3), (4, 4, 4))
    """
    counts = range(sum(started), trials, size)
    return (*started, *(min(size, trials - count) for count in counts))


def survivors(
    scores: Mapping[int, float], count: int, always: int | None = None
) -> list[int]:
    """Return the settings that continue: those with the lowest finite scores.

    Args:
        scores: score of each setting, by number; infinite if it diverged.
        count: largest number of settings that continue.
        always: another setting that continues with any finite score.

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
    """Return the number of rounds of all runs of a generation.

    Example:
        >>> work_of(rounds=60, settings=24, seeds=3)  # 24 · 15 + 12 · 30 + 6 · 60 · 3
        1800
    """
    return sum(rung.work for rung in rungs_of(rounds, settings, seeds))


def full_runs(rounds: int, trials: int, seeds: int) -> int:
    """Return the number of full runs with as many rounds as a search, rounded up.

    With fewer than 40 rounds, the shortest runs have more than a quarter of the rounds,
    and a search costs more.

    Example:
        >>> [full_runs(rounds, trials=120, seeds=3) for rounds in (60, 40, 30, 20, 10)]
        [150, 150, 160, 240, 360]
    """
    sizes = generations_of(trials, generation_size(trials))
    return -(-sum(work_of(rounds, size, seeds) for size in sizes) // rounds)
