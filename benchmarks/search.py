"""The search that every contender gets: draws, neighbours, and whole runs.

16 draws of a Sobol sequence run with a fifth of the samples; the best four and a
neighbour of each run with two fifths of them. Then whole runs decide: the best three
run with two seeds, the better two of them with four, the best with ten. Settings are
compared by their worst seed, and one whose loss ends no lower than it began makes room
for the next, at last for draws that were not kept. So a step that deteriorates late, or
with one seed in five, does not win.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

from benchmarks.contenders import CHOICES, RANGES, Values

Loss = Callable[[Values, float, int], float]
"""Of a setting, after a part of the samples, with a seed."""


class Effort(NamedTuple):
    """How much is tried.

    Attributes:
        draws: settings drawn.
        kept: of them, after the first rung.
        finals: how many settings are left, and the seeds that each is run whole with.
        runs: the most whole runs, if many fail.
    """

    draws: int
    kept: int
    finals: tuple[tuple[int, int], ...]
    runs: int


FIRST_SEED = 1000
"""No reported run has a seed from here on."""
SHARES = 0.2, 0.4
"""Of the samples, on the first two rungs."""
REACH = np.log(3.0)
"""How far neighbours are, at most, on the logarithm of a number."""


class Found(NamedTuple):
    """What a search ends with.

    Attributes:
        best: the setting.
        whole: its losses in whole runs.
        runs: whole runs made.
        drawn: the loss of each draw.
        halfway: the losses of the second rung.
    """

    best: dict[str, float]
    whole: list[float]
    runs: int
    drawn: list[float]
    halfway: list[float]


def search(names: Sequence[str], loss: Loss, start: float, effort: Effort) -> Found:
    """Return the setting that is best by its worst seed.

    Args:
        names: what is searched.
        loss: what is to be small; infinite where a run diverged.
        start: the loss where all runs begin.
        effort: how much is tried.
    """
    generator = np.random.default_rng(0)
    draws = drawn(names, effort.draws)
    first = [loss(setting, SHARES[0], FIRST_SEED) for setting in draws]
    order = [draws[place] for place in np.argsort(first)]
    kept, others = order[: effort.kept], order[effort.kept :]
    kept += [neighbour(setting, generator) for setting in kept]
    second = [loss(setting, SHARES[1], FIRST_SEED + 1) for setting in kept]
    settings = [kept[place] for place in np.argsort(second)] + others
    waiting = list(range(len(settings)))
    whole: dict[int, list[float]] = {place: [] for place in waiting}

    def passes(place: int, seeds: int) -> bool:
        losses = whole[place]
        while len(losses) < seeds and all(one < start for one in losses):
            losses.append(loss(settings[place], 1.0, FIRST_SEED + 2 + len(losses)))
        return all(one < start for one in losses)

    def runs() -> int:
        return sum(map(len, whole.values()))

    for width, seeds in effort.finals:
        passed: list[int] = []
        while waiting and len(passed) < width and runs() < effort.runs:
            place = waiting.pop(0)
            passed += [place] if passes(place, seeds) else []
        waiting = sorted(passed, key=lambda place: max(whole[place])) + waiting
    # If none has passed all, the one that got furthest.
    best = max(whole, key=lambda place: sum(one < start for one in whole[place]))
    return Found(settings[best], whole[best], runs(), first, second)


def drawn(names: Sequence[str], count: int) -> list[dict[str, float]]:
    """Return settings that fill the ranges evenly."""
    points = qmc.Sobol(len(names), seed=0).random_base2(int(np.ceil(np.log2(count))))
    return [
        {name: _at(name, float(part)) for name, part in zip(names, point, strict=True)}
        for point in points[:count]
    ]


def neighbour(setting: Values, generator: np.random.Generator) -> dict[str, float]:
    """Return a setting near another, perhaps outside the ranges; choices stay."""
    near = dict(setting)
    for name, value in setting.items():
        if name in RANGES:
            factor = float(np.exp(generator.uniform(-REACH, REACH)))
            near[name] = min(value * factor, RANGES[name].most)
    return near


def at_edges(setting: Values) -> list[str]:
    """Return the names whose value is outside of its range, or hardly inside."""
    return [
        name
        for name, value in setting.items()
        if name in RANGES
        and not 1.1 * RANGES[name].low < value < RANGES[name].high / 1.1
    ]


def _at(name: str, part: float) -> float:
    if name in CHOICES:
        choices = CHOICES[name]
        return float(choices[int(part * len(choices))])
    low, high, _ = RANGES[name]
    return float(low * (high / low) ** part)
