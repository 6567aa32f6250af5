"""The search that every contender gets: draws, neighbours, whole runs, wider ranges.

Draws of a Sobol sequence run with a fifth of the samples; the best of them and a
neighbour of each run with two fifths. Then whole runs with ever more seeds decide
between ever fewer settings. These are compared by their worst seed, and one whose loss
ends no lower than it began makes room for the next, at last for draws that were not
kept. Where the best is at the edge of a range, it is moved on threefold as long as two
fifths of the samples say that it gets better, and whole runs with the same seeds decide
between both. So a step that deteriorates late does not win. One that does so with one
seed in ten may; the reported seeds then show it.
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
        wider: the most settings outside of the ranges that are tried.
    """

    draws: int
    kept: int
    finals: tuple[tuple[int, int], ...]
    runs: int
    wider: int


FIRST_SEED = 1000
"""No reported run has a seed from here on."""
SHARES = 0.2, 0.4
"""Of the samples, on the first two rungs."""
REACH = 3.0
"""By what factor neighbours differ at most, and what is beyond an edge is tried."""


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
    found = Found(settings[best], whole[best], runs(), first, second)
    return widened(found, loss, effort.wider)


def widened(found: Found, loss: Loss, most: int) -> Found:
    """Return a better setting outside of the ranges if the best is at their edges.

    Args:
        found: the best so far.
        loss: what is to be small.
        most: settings to try.
    """
    best, tried = found.best, 0
    if not at_edges(best):
        return found
    halfway = loss(best, SHARES[1], FIRST_SEED + 1)
    better = True
    while better:
        better = False
        for further in _beyond(best):
            if tried == most:
                break
            tried += 1
            reached = loss(further, SHARES[1], FIRST_SEED + 1)
            if reached < halfway:
                best, halfway, better = further, reached, True
                break
    if best is found.best:
        return found
    whole: list[float] = []
    while len(whole) < len(found.whole):
        whole.append(loss(best, 1.0, FIRST_SEED + 2 + len(whole)))
        if not whole[-1] < max(found.whole):
            return found._replace(runs=found.runs + len(whole))
    return found._replace(best=best, whole=whole, runs=found.runs + len(whole))


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
            factor = float(np.exp(generator.uniform(-1, 1) * np.log(REACH)))
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


def _beyond(setting: Values) -> list[dict[str, float]]:
    """Return settings with one number at an edge moved outwards."""
    further = []
    for name in at_edges(setting):
        low, high, most = RANGES[name]
        outwards = REACH if setting[name] ** 2 > low * high else 1 / REACH
        value = min(setting[name] * outwards, most)
        if value != setting[name]:
            further.append({**setting, name: value})
    return further


def _at(name: str, part: float) -> float:
    if name in CHOICES:
        choices = CHOICES[name]
        return float(choices[int(part * len(choices))])
    low, high, _ = RANGES[name]
    return float(low * (high / low) ** part)
