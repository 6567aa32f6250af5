"""Linear speed-up: steps to a fixed stationarity against the number of devices.

    python -m benchmarks.speedup [--fast]

Corollaries 2 and 4: K devices need 1/K of the steps. The bounds behind them have a
transient that falls with ηT and a noise that grows with η and falls with K, so more
devices help by allowing a larger η. η is tuned for every K on one grid, with seeds that
the reported steps do not use. There are two regimes. With much noise the best η is
proportional to K, and T to 1/K. With little noise the best η is the largest one that
gives a fresh sample a weight of at most 1, for any K; the transient dominates, and more
devices hardly help. (That weight is αη² for LocalBSGVRM, whose α is O(1/K): one or two
devices cannot use the grid's largest η.)

The noisy regime has a different noise for each algorithm, so that noise dominates for
both. A second table has all four algorithms at one noise (`benchmarks.one_noise`), each
with its best rate and weight of a fresh sample for every K. It shows whether variance
reduction needs fewer samples, and whether more devices help it as much.
"""

from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from benchmarks import experiment, one_noise
from benchmarks.noisy_quadratic import Noise
from benchmarks.passage import TERMS, admissible, passages, tune
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel.theory import (
    LOCAL_BSGM_LAW,
    LOCAL_BSGVRM_LAW,
    Plan,
    ScalingLaw,
)
from fedbilevel.theory.scaling import Factors

BAND = 0.15
"""Largest accepted distance of a slope in the noisy regime from −1."""
STALLED = -0.25
"""Lower bound of a slope in the quiet regime."""
LOCAL_STEPS = 8
QUIET = Noise(gradients=0.1, curvature=0.02)
QUIET_STEPS = 4_000
ONE_NOISE = Noise(gradients=2.0)
ONE_THRESHOLD = 4.0
COLOURS = {"noisy": "#0072B2", "quiet": "#D55E00"}
MARKS = {"noisy": "o", "quiet": "s"}


class Method(NamedTuple):
    """An algorithm and its settings for one device.

    Attributes:
        law: powers of K of the settings.
        noise: noise of gradients in the noisy regime. Variance reduction needs more
            noise before it dominates the transient.
        mixing: α and β.
        initial_batch_size: B.
    """

    law: ScalingLaw
    noise: float
    mixing: float
    initial_batch_size: int

    def factors(self, devices: int) -> Factors:
        """Return the factors of the settings for K devices."""
        return self.law.factors(devices=float(devices), accuracy=1.0)


METHODS = {
    "LocalBSGM": Method(LOCAL_BSGM_LAW, 3.0, 2.0, 1),
    "LocalBSGVRM": Method(LOCAL_BSGVRM_LAW, 10.0, 16.0, 256),
}


class Setting(NamedTuple):
    """The size of the experiment.

    Attributes:
        devices: values of K.
        rates: the grid of η.
        tuning_seeds: number of seeds to choose η.
        seeds: number of seeds to report T.
        threshold: the average stationarity to reach.
        steps: largest number of steps with one device; K devices have 1/K of that, plus
            2,000.
        regimes: names of the regimes.
        one_noise: the grid of the four algorithms at one noise.
        one_noise_devices: values of K at one noise.
        one_noise_steps: as `steps`, at one noise.
    """

    devices: tuple[int, ...]
    rates: tuple[float, ...]
    tuning_seeds: int
    seeds: int
    threshold: float
    steps: int
    regimes: tuple[str, ...]
    one_noise: one_noise.Grid
    one_noise_devices: tuple[int, ...]
    one_noise_steps: int


FULL = Setting(
    devices=(1, 2, 4, 8, 16, 32),
    rates=tuple(2.0 ** -(k / 2) for k in range(2, 18)),
    tuning_seeds=5,
    seeds=10,
    threshold=4.0,
    steps=100_000,
    regimes=("noisy", "quiet"),
    one_noise=one_noise.FULL,
    one_noise_devices=(2, 8, 32),
    one_noise_steps=40_000,
)
FAST = Setting(
    devices=(1, 2, 8),
    rates=tuple(2.0**-k for k in range(2, 9)),
    tuning_seeds=2,
    seeds=4,
    threshold=12.0,
    steps=15_000,
    regimes=("noisy",),
    one_noise=one_noise.FAST,
    one_noise_devices=(8, 16, 32),
    one_noise_steps=40_000,
)


def plan_from(method: Method, devices: int, rate: float, threshold: float) -> Plan:
    """Return a plan whose α, β and B scale with K as in the corollaries."""
    factors = method.factors(devices)
    return Plan(
        method.law,
        devices=devices,
        accuracy=threshold,
        steps=1,  # unknown: it is measured
        local_steps=LOCAL_STEPS,
        learning_rate=rate,
        upper_mixing=method.mixing * factors.mixing,
        lower_mixing=method.mixing * factors.mixing,
        terms=TERMS,
        initial_batch_size=ceil(method.initial_batch_size * factors.initial_batch_size),
    )


def cell(setting: Setting, name: str, regime: str, devices: int) -> dict[str, Any]:
    """Tune the rate; return it and the steps of each seed."""
    method, noisy = METHODS[name], regime == "noisy"
    mixing = method.mixing * method.factors(devices).mixing
    rates = admissible(method.law, mixing, setting.rates)
    results = passages(
        [plan_from(method, devices, rate, setting.threshold) for rate in rates],
        noise=Noise(method.noise) if noisy else QUIET,
        steps=setting.steps // devices + 2_000 if noisy else QUIET_STEPS,
        seeds=range(setting.tuning_seeds + setting.seeds),
    )
    tuned = tune(results, setting.tuning_seeds)
    return {"rate": rates[tuned.best], "inside": tuned.inside, "steps": tuned.steps}


def one_noise_cell(setting: Setting, name: str, devices: int) -> dict[str, Any]:
    """Tune an algorithm at one noise; return its best setting and costs."""
    (result,) = one_noise.race(
        setting.one_noise,
        name,
        devices=devices,
        noise=ONE_NOISE,
        accuracies=[ONE_THRESHOLD],
        steps=setting.one_noise_steps // devices + 2_000,
    )
    return result


def draw_one_noise(setting: Setting, results: dict[str, Any], directory: Path) -> None:
    """Draw samples against K, one line per algorithm."""
    figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
    devices = setting.one_noise_devices
    for name in one_noise.ALGORITHMS:
        one_noise.draw_line(
            axis, name, devices, [results[f"{name}-{k}"]["samples"] for k in devices]
        )
    axis.set(xscale="log", yscale="log", xlabel="devices K")
    axis.set_ylabel(f"samples to an average stationarity of {ONE_THRESHOLD:g}")
    axis.set_xticks(devices, [str(k) for k in devices], minor=False)
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axis.legend()
    experiment.save_figure(figure, directory / "speedup-one-noise.svg")


def report_one_noise(setting: Setting, directory: Path) -> list[Bound]:
    """Run the four algorithms at one noise, write tables, return bounds."""
    devices = setting.one_noise_devices
    results = experiment.run_cells(
        "speedup-one-noise",
        setting,
        {
            f"{name}-{k}": partial(one_noise_cell, setting, name, k)
            for name in one_noise.ALGORITHMS
            for k in devices
        },
    )
    header = ["algorithm", "devices", *one_noise.HEADER]
    by_devices = {
        k: {name: results[f"{name}-{k}"] for name in one_noise.ALGORITHMS}
        for k in devices
    }
    rows = [
        [name, k, *one_noise.row(name, by_devices[k])]
        for name in one_noise.ALGORITHMS
        for k in devices
    ]
    print_table(header, [[experiment.short(item) for item in row] for row in rows])
    experiment.write_table(directory / "speedup-one-noise.csv", header, rows)
    experiment.write_slopes(
        directory / "speedup-one-noise-slopes.csv",
        "log T on log K, at one noise,",
        {
            name: experiment.fit_slope(
                devices, [results[f"{name}-{k}"]["steps"] for k in devices]
            )
            for name in one_noise.ALGORITHMS
        },
    )
    draw_one_noise(setting, results, directory)
    return one_noise.bounds(results, by_devices[devices[0]])


def draw(
    setting: Setting, results: dict[str, Any], slopes: dict[str, Any], directory: Path
) -> None:
    """Draw T against K, one panel per algorithm."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    devices = np.array(setting.devices)
    for axis, name in zip(axes, METHODS, strict=True):
        for regime in setting.regimes:
            steps = [results[f"{name}-{regime}-{k}"]["steps"] for k in devices]
            means = np.exp(np.mean(np.log(steps), axis=1))
            colour = COLOURS[regime]
            for k, seeds in zip(devices, steps, strict=True):
                axis.plot([k] * len(seeds), seeds, ".", color=colour, alpha=0.3)
            label = f"{regime}: slope {slopes[f'{name}-{regime}']}"
            axis.plot(devices, means, MARKS[regime], color=colour, label=label)
            if regime == "noisy":
                middle = np.exp(np.mean(np.log(means * devices)))
                axis.plot(devices, middle / devices, "--", color="0.4", label="1/K")
                edges = (devices / np.exp(np.mean(np.log(devices)))) ** BAND
                centre = middle / devices
                axis.fill_between(
                    devices, centre / edges, centre * edges, color="0.85", zorder=0
                )
        axis.set(xscale="log", yscale="log", title=name, xlabel="devices K")
        axis.set_xticks(devices, [str(k) for k in devices], minor=False)
        axis.minorticks_off()
        axis.legend()
    axes[0].set_ylabel(f"steps T to an average stationarity of {setting.threshold:g}")
    experiment.save_figure(figure, directory / "speedup.svg")


def main() -> None:
    arguments = experiment.arguments(__doc__, "3 numbers of devices, much noise only")
    setting = FAST if arguments.fast else FULL
    cells = {
        f"{name}-{regime}-{k}": partial(cell, setting, name, regime, k)
        for name in METHODS
        for regime in setting.regimes
        for k in setting.devices
    }
    results = experiment.run_cells("speedup", setting, cells)
    header = [
        "algorithm",
        "regime",
        "devices",
        "rate",
        "steps",
        "least",
        "most",
        "gain",
    ]
    rows: list[list[object]] = []
    slopes: dict[str, experiment.Slope] = {}
    for name in METHODS:
        for regime in setting.regimes:
            group = [results[f"{name}-{regime}-{k}"] for k in setting.devices]
            steps = [result["steps"] for result in group]
            slopes[f"{name}-{regime}"] = experiment.fit_slope(setting.devices, steps)
            means = np.exp(np.mean(np.log(steps), axis=1))
            rows += [
                [
                    *(name, regime, k, result["rate"], round(mean)),
                    *(round(min(result["steps"])), round(max(result["steps"]))),
                    float(means[0] / mean),
                ]
                for k, result, mean in zip(setting.devices, group, means, strict=True)
            ]
    print_table(header, [[experiment.short(item) for item in row] for row in rows])
    experiment.write_table(arguments.directory / "speedup.csv", header, rows)
    experiment.write_slopes(
        arguments.directory / "speedup-slopes.csv", "log T on log K", slopes
    )
    draw(setting, results, slopes, arguments.directory)
    at_one_noise = report_one_noise(setting, arguments.directory)
    edges = sum(
        not result["inside"] for key, result in results.items() if "noisy" in key
    )
    bounds = [Bound("best rates at an end of the grid", edges, 0)]
    for which, slope in slopes.items():
        if which.endswith("noisy"):
            bounds.append(Bound(f"|{which} slope + 1|", abs(slope.value + 1), BAND))
        else:
            bounds.append(Bound(f"{which} slope", slope.value, STALLED, at_least=True))
    conclude([*bounds, *at_one_noise])


if __name__ == "__main__":
    main()
