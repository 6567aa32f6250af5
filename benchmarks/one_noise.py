"""Samples to a stationarity with and without variance reduction, at equal noise.

LocalBSGVRM and FedBiOAcc correct each estimate by the sample's value at the previous
point; LocalBSGM and FedBiO do not. Table 1 of the paper gives LocalBSGVRM and FedBiOAcc
a lower power of 1/ε than LocalBSGM. Here all four solve the same noisy quadratic. Each
is tuned on the same grid: the rate η times the weight of a fresh sample, which is αη
for LocalBSGM and αη² for the two with variance reduction. FedBiO has no momentum, so
its weight is 1. All other settings are equal: local steps, batches of 1, and the ratio
of the rates of x and y.

Samples are counted as in the library: each drawn example once. Variance reduction
evaluates each sample at two points, so evaluations are reported as well.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from benchmarks import noisy_quadratic
from benchmarks.noisy_quadratic import Noise
from benchmarks.passage import LOWER_RATE, TERMS, UPPER_RATE, first_steps
from benchmarks.timing import Bound
from fedbilevel import (
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    Run,
    sweep,
)
from fedbilevel.engines.costs import Costs

PAIRS = {"LocalBSGVRM": "LocalBSGM", "FedBiOAcc": "FedBiO"}
"""The algorithms with variance reduction, and their counterparts without it."""
ALGORITHMS = ("LocalBSGM", "LocalBSGVRM", "FedBiO", "FedBiOAcc")
COLOURS = dict(
    zip(ALGORITHMS, ("#0072B2", "#D55E00", "#56B4E9", "#E69F00"), strict=True)
)
MARKS = dict(zip(ALGORITHMS, "osD^", strict=True))
LOCAL_STEPS = 8
OPENING = 16
"""B, the batch size of the first estimate with variance reduction."""


class Grid(NamedTuple):
    """The grid of settings, and the seeds.

    Attributes:
        rates: η, from the largest.
        weights: weights of a fresh sample, from 1.
        tuning_seeds: number of seeds to choose a setting.
        seeds: number of other seeds to report.
    """

    rates: tuple[float, ...]
    weights: tuple[float, ...]
    tuning_seeds: int
    seeds: int

    def settings(self, name: str) -> list[tuple[float, float]]:
        """Return each (η, weight) of the grid for an algorithm."""
        weights = (1.0,) if name == "FedBiO" else self.weights
        return list(product(self.rates, weights))

    def encloses(self, rate: float, weight: float) -> bool:
        """Return whether a setting is in the interior of the grid.

        A weight of 1 counts as interior, since no weight is larger.
        """
        return rate not in (self.rates[0], self.rates[-1]) and (
            weight != self.weights[-1]
        )


FULL = Grid(
    rates=tuple(2.0**-k for k in range(-1, 8)),
    weights=tuple(4.0**-k for k in range(6)),
    tuning_seeds=5,
    seeds=10,
)
FAST = Grid(
    rates=tuple(4.0**-k for k in range(-1, 5)),
    weights=tuple(8.0**-k for k in range(4)),
    tuning_seeds=2,
    seeds=3,
)


def algorithm_of(name: str, rate: float, weight: float) -> FederatedAlgorithm:
    """Return an algorithm with a rate and the weight of a fresh sample."""
    series = NeumannSeries(TERMS, noisy_quadratic.SERIES_SCALE)
    shared: dict[str, Any] = {
        "learning_rate": rate,
        "upper_rate": UPPER_RATE,
        "lower_rate": LOWER_RATE,
        "local_steps": LOCAL_STEPS,
    }
    mixing = weight / rate if name == "LocalBSGM" else weight / rate**2
    mixed = {**shared, "upper_mixing": mixing, "lower_mixing": mixing}
    match name:
        case "LocalBSGM":
            return LocalBSGM(hypergradient=series, **mixed)
        case "LocalBSGVRM":
            return LocalBSGVRM(
                hypergradient=series, **mixed, initial_batch_size=OPENING
            )
        case "FedBiO":
            return FedBiO(**shared)
        case _:
            return FedBiOAcc(**mixed, adjoint_mixing=mixing, initial_batch_size=OPENING)


def evaluations(name: str, devices: int, samples: float) -> float:
    """Return the number of evaluations of examples.

    With variance reduction, opening batches are evaluated at one point, later batches
    at two.
    """
    if name not in PAIRS:
        return samples
    batches = 4 if name == "FedBiOAcc" else TERMS + 3
    return 2 * samples - devices * OPENING * batches


def arrivals(
    name: str,
    settings: Sequence[tuple[float, float]],
    *,
    devices: int,
    noise: Noise,
    accuracies: Sequence[float],
    steps: int,
    seeds: Sequence[int],
) -> tuple[Float[np.ndarray, "accuracies settings seeds"], tuple[Costs, ...]]:
    """Return the steps of each setting to each ε, and the costs after each round.

    A run does not depend on ε, so one run gives the steps to all of them.
    """
    task, start = noisy_quadratic.task(devices, noise), noisy_quadratic.start()
    algorithms = [algorithm_of(name, *setting) for setting in settings]
    inputs = task.problem, algorithms[0], task.devices, start.x, start.y
    swept = sweep(
        Run(*inputs, rounds=-(-steps // LOCAL_STEPS)),
        algorithms,
        seeds=seeds,
        measure=noisy_quadratic.stationarity(),
    )
    measured = np.asarray(swept.measurements)
    taken = [
        first_steps(accuracy, start.stationarity, measured, LOCAL_STEPS)
        for accuracy in accuracies
    ]
    return np.stack(taken), swept.costs[0]


def race(
    grid: Grid,
    name: str,
    *,
    devices: int,
    noise: Noise,
    accuracies: Sequence[float],
    steps: int,
) -> list[dict[str, Any]]:
    """Tune an algorithm for each ε; return the costs of the best setting, by seed.

    The best setting has the smallest geometric mean of steps over the tuning seeds. A
    setting with which one of them does not reach ε is rejected.

    Args:
        grid: the settings.
        name: name of the algorithm.
        devices: K.
        noise: the scatter of examples.
        accuracies: each ε.
        steps: number of steps, well above that of the best settings.

    Raises:
        ValueError: if no setting reaches an accuracy within `steps`.
    """
    settings = grid.settings(name)
    shared: dict[str, Any] = {
        "devices": devices,
        "noise": noise,
        "accuracies": accuracies,
    }
    tuning, _ = arrivals(
        name, settings, **shared, steps=steps, seeds=range(grid.tuning_seeds)
    )
    means = np.exp(
        np.mean(np.log(tuning), axis=2)
    )  # infinite if a seed does not arrive
    chosen = np.argmin(means, axis=1)
    needed = np.min(means, axis=1)
    if not np.isfinite(needed).all():
        raise ValueError(
            f"{name} does not reach all of {tuple(accuracies)} in {steps} steps with "
            f"{devices} devices; allow more steps."
        )
    numbers = sorted(set(chosen.tolist()))
    seeds = range(grid.tuning_seeds, grid.tuning_seeds + grid.seeds)
    # Other seeds may take much longer than the tuning seeds.
    taken, costs = arrivals(
        name,
        [settings[number] for number in numbers],
        **shared,
        steps=min(steps, 8 * int(needed.max())),
        seeds=seeds,
    )
    results = []
    for index, number in enumerate(chosen.tolist()):
        rate, weight = settings[number]
        steps_of_seeds = taken[index, numbers.index(number)].tolist()
        samples = [_samples(costs, count) for count in steps_of_seeds]
        results.append(
            {
                "rate": rate,
                "weight": weight,
                "inside": grid.encloses(rate, weight),
                "steps": steps_of_seeds,
                "samples": samples,
                "evaluations": [evaluations(name, devices, n) for n in samples],
            }
        )
    return results


def _samples(costs: Sequence[Costs], steps: float) -> float:
    rounds = steps / LOCAL_STEPS
    return costs[int(rounds) - 1].samples if isfinite(rounds) else rounds


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


HEADER = (
    *("rate", "weight", "steps", "least", "most", "samples", "evaluations"),
    *("samples_ratio", "evaluations_ratio"),
)


def row(name: str, results: Mapping[str, dict[str, Any]]) -> list[object]:
    """Return an algorithm's row of `HEADER`.

    Args:
        name: name of the algorithm.
        results: results of all four, by name, under equal conditions. Ratios are to the
            counterpart without variance reduction.
    """
    result = results[name]
    ratios = [ratio(name, results, measure) for measure in ("samples", "evaluations")]
    return [
        *(result["rate"], result["weight"], round(mean(result["steps"]))),
        *(round(min(result["steps"])), round(max(result["steps"]))),
        *(round(mean(result["samples"])), round(mean(result["evaluations"]))),
        *ratios,
    ]


def bounds(
    every: Mapping[str, dict[str, Any]], noisiest: Mapping[str, dict[str, Any]]
) -> list[Bound]:
    """Return the bounds of a race, such as no best setting at an end of the grid.

    Args:
        every: results of all tuned settings.
        noisiest: results of the four at the largest effect of noise, where variance
            reduction must halve the samples.
    """
    edges = sum(not result["inside"] for result in every.values())
    return [
        Bound("best settings at an end of the grid, one noise", edges, 0),
        *(
            Bound(f"{name}'s samples over {other}'s", ratio(name, noisiest), 0.5)
            for name, other in PAIRS.items()
        ),
    ]


def draw_line(
    axis: Axes, name: str, x: Sequence[float], taken: Sequence[Sequence[float]]
) -> None:
    """Draw an algorithm's geometric means and every seed."""
    means = [mean(seeds) for seeds in taken]
    axis.plot(x, means, f"{MARKS[name]}-", color=COLOURS[name], label=name)
    for position, seeds in zip(x, taken, strict=True):
        axis.plot([position] * len(seeds), seeds, ".", color=COLOURS[name], alpha=0.3)


def ratio(
    name: str, results: Mapping[str, dict[str, Any]], measure: str = "samples"
) -> float:
    """Return the cost of an algorithm over that of its counterpart in `PAIRS`."""
    other = results[PAIRS.get(name, name)]
    return mean(results[name][measure]) / mean(other[measure])
