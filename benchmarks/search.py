"""The search of every contender: draws, neighbours, complete runs, wider ranges.

1. Draws of a Sobol sequence run with a fifth of the samples; the best of them and a
   neighbour of each run with two fifths.
2. Complete runs with more and more seeds decide between fewer and fewer settings. These
   are compared by their worst seed. A setting whose final loss is not below the initial
   one is replaced by the next, finally by draws that were rejected in step 1.
3. If the best setting is at the edge of a range, it is moved outwards by a factor of
   three as long as runs with two fifths of the samples improve; complete runs with the
   same seeds then decide between both.

So a step that deteriorates late does not win. A step that deteriorates with one seed in
ten may win; the reported seeds then show it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

from benchmarks.contenders import CHOICES, RANGES, Values

Loss = Callable[[Values, float, int], float]
"""The loss of a setting after a fraction of the samples, with a seed."""


class Effort(NamedTuple):
    """The size of a search.

    Attributes:
        draws: number of settings drawn.
        survivors: number of settings after the first rung.
        finals: numbers of settings in the finals, and of seeds of their complete runs.
        runs: largest number of complete runs, if many fail.
        wider: largest number of settings outside of the ranges.
    """

    draws: int
    survivors: int
    finals: tuple[tuple[int, int], ...]
    runs: int
    wider: int


FIRST_SEED = 1000
"""First seed of the search; all reported seeds are smaller."""
SHARES = 0.2, 0.4
"""Fractions of the samples on the first two rungs."""
REACH = 3.0
"""Largest factor between neighbours, and the factor of a step beyond an edge."""


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
        best: the best setting.
        whole: its losses in complete runs.
        runs: number of complete runs.
        drawn: losses of the draws.
        halfway: losses of the second rung.
    """

    best: dict[str, float]
    whole: list[float]
    runs: int
    drawn: list[float]
    halfway: list[float]


def search(
    names: Sequence[str], loss: Loss, start: float, effort: Effort
) -> SearchResult:
    """Return the setting that is best by its worst seed.

    Args:
        names: names of the searched settings.
        loss: function to minimise; infinite if a run diverged.
        start: the initial loss of all runs.
        effort: the size of the search.
    """
    generator = np.random.default_rng(0)
    draws = draw_settings(names, effort.draws)
    first = [loss(setting, SHARES[0], FIRST_SEED) for setting in draws]
    order = [draws[index] for index in np.argsort(first)]
    best_draws, others = order[: effort.survivors], order[effort.survivors :]
    second_rung = best_draws + [neighbour(draw, generator) for draw in best_draws]
    second = [loss(setting, SHARES[1], FIRST_SEED + 1) for setting in second_rung]
    settings = [second_rung[index] for index in np.argsort(second)] + others
    waiting = list(range(len(settings)))
    whole: dict[int, list[float]] = {index: [] for index in waiting}

    def passes(index: int, seeds: int) -> bool:
        losses = whole[index]
        while len(losses) < seeds and all(value < start for value in losses):
            losses.append(loss(settings[index], 1.0, FIRST_SEED + 2 + len(losses)))
        return all(value < start for value in losses)

    def runs() -> int:
        return sum(map(len, whole.values()))

    for width, seeds in effort.finals:
        passed: list[int] = []
        while waiting and len(passed) < width and runs() < effort.runs:
            index = waiting.pop(0)
            passed += [index] if passes(index, seeds) else []
        waiting = sorted(passed, key=lambda index: max(whole[index])) + waiting
    # If no setting has passed all seeds, choose the one that passed most.
    best = max(whole, key=lambda index: sum(value < start for value in whole[index]))
    result = SearchResult(settings[best], whole[best], runs(), first, second)
    return widen(result, loss, effort.wider)


def widen(result: SearchResult, loss: Loss, most: int) -> SearchResult:
    """Return a better setting outside of the ranges if the best is at their edges.

    Args:
        result: the result so far.
        loss: function to minimise.
        most: largest number of settings to evaluate.
    """
    best, evaluated = result.best, 0
    if not at_edges(best):
        return result
    halfway = loss(best, SHARES[1], FIRST_SEED + 1)
    better = True
    while better:
        better = False
        for further in _beyond(best):
            if evaluated == most:
                break
            evaluated += 1
            reached = loss(further, SHARES[1], FIRST_SEED + 1)
            if reached < halfway:
                best, halfway, better = further, reached, True
                break
    if best is result.best:
        return result
    whole: list[float] = []
    while len(whole) < len(result.whole):
        whole.append(loss(best, 1.0, FIRST_SEED + 2 + len(whole)))
        if not whole[-1] < max(result.whole):
            return result._replace(runs=result.runs + len(whole))
    return result._replace(best=best, whole=whole, runs=result.runs + len(whole))


def draw_settings(names: Sequence[str], count: int) -> list[dict[str, float]]:
    """Return settings that cover the ranges evenly."""
    points = qmc.Sobol(len(names), seed=0).random_base2(int(np.ceil(np.log2(count))))
    return [
        {name: _at(name, float(part)) for name, part in zip(names, point, strict=True)}
        for point in points[:count]
    ]


def neighbour(setting: Values, generator: np.random.Generator) -> dict[str, float]:
    """Return a setting near another, perhaps outside the ranges, same choices."""
    near = dict(setting)
    for name, value in setting.items():
        if name in RANGES:
            factor = float(np.exp(generator.uniform(-1, 1) * np.log(REACH)))
            near[name] = min(value * factor, RANGES[name].most)
    return near


def at_edges(setting: Values) -> list[str]:
    """Return the names whose value is at or beyond an edge of its range."""
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
