"""Samples and rounds against the accuracy, with the corollaries' schedules.

    python -m benchmarks.complexity [--fast]

Corollaries 2 and 4 give p, η, Q and B as powers of ε, up to constants. The constants
are calibrated once: at the largest ε, η is tuned on a grid. `plan_for_accuracy` scales
these settings to every smaller ε, and nothing is tuned again. T is the first
step at which the average stationarity is at ε, as measured, not as planned.

Samples are all examples that all devices draw, those of the series and of the opening
batch included. Their number per step grows with Q = O(log 1/ε), which the paper omits;
the slope of T alone is printed as well. The algorithms have different noise, so
that the powers of both show at these accuracies: compare slopes, not heights.

To compare heights, a second table has all four algorithms at one noise, each
with its best rate and weight of a fresh sample for every ε (`benchmarks.one_noise`),
once with much noise and once with little.
"""

from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from benchmarks import experiment, noisy_quadratic, one_noise
from benchmarks.noisy_quadratic import Noise
from benchmarks.passage import TERMS, Passages, admissible, passages, tune
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel.theory import (
    LOCAL_BSGM_LAW,
    LOCAL_BSGVRM_LAW,
    Plan,
    ScalingLaw,
    plan_for_accuracy,
)

BAND = 0.3
"""Largest accepted distance of a slope from the paper's power."""
DEVICES = 4
LARGEST = 10.0
"""The largest ε, at which the constants are calibrated."""
CALIBRATION_STEPS = 8_000
SLACK = 2
"""Factor of the planned steps after which a run stops."""
COLOURS = {"LocalBSGM": "#0072B2", "LocalBSGVRM": "#D55E00"}
MARKS = {"LocalBSGM": "o", "LocalBSGVRM": "s"}
MEASURES = {"samples": "samples, all devices", "rounds": "rounds"}


class Level(NamedTuple):
    """A noise level at which all four algorithms run.

    Attributes:
        noise: the scatter of examples.
        accuracies: each ε, from the largest.
        steps: number of steps, well above that of the best settings.
    """

    noise: Noise
    accuracies: tuple[float, ...]
    steps: int


class Setting(NamedTuple):
    """The size of the experiment.

    Attributes:
        local_steps: p, the calibrated one first. Each determines its ε, as p is
            proportional to ε^(-1/2), so that no p is ever rounded.
        rates: η, the grid of the calibration.
        tuning_seeds: number of seeds to choose η.
        seeds: number of seeds to report.
        one_noise: the grid of the four algorithms at one noise level.
        levels: the noise levels, by name.
    """

    local_steps: tuple[int, ...]
    rates: tuple[float, ...]
    tuning_seeds: int
    seeds: int
    one_noise: one_noise.Grid
    levels: dict[str, Level]

    def accuracy(self, local_steps: int) -> float:
        """Return the ε of p."""
        return LARGEST * (self.local_steps[0] / local_steps) ** 2


FULL = Setting(
    local_steps=(4, 5, 6, 7, 8, 10, 12, 14),
    rates=tuple(2.0 ** -(k / 2) for k in range(2, 12)),
    tuning_seeds=5,
    seeds=10,
    one_noise=one_noise.FULL,
    levels={
        "noisy": Level(Noise(1.6), (20.0, 10.0, 5.0, 2.5), 20_000),
        "quiet": Level(Noise(0.1, 0.02), (20.0, 10.0, 5.0, 2.5, 1.25, 0.625), 8_000),
    },
)
FAST = Setting(
    local_steps=(4, 6, 8),
    rates=tuple(2.0**-k for k in range(1, 6)),
    tuning_seeds=2,
    seeds=3,
    one_noise=one_noise.FAST,
    levels={"noisy": Level(Noise(1.6), (20.0, 10.0, 5.0), 8_000)},
)


class Method(NamedTuple):
    """An algorithm, its settings at the largest ε, and the paper's powers of ε.

    Attributes:
        law: powers of ε of the settings.
        noise: noise of the gradients. Variance reduction needs more noise before it
            dominates the transient.
        mixing: α and β.
        initial_batch_size: B.
        powers: expected powers of samples (T up to Q) and of rounds.
    """

    law: ScalingLaw
    noise: float
    mixing: float
    initial_batch_size: int
    powers: dict[str, float]


METHODS = {
    "LocalBSGM": Method(LOCAL_BSGM_LAW, 1.6, 2.0, 1, {"samples": -2.0, "rounds": -1.5}),
    "LocalBSGVRM": Method(
        LOCAL_BSGVRM_LAW, 4.5, 4.0, 32, {"samples": -1.5, "rounds": -1.0}
    ),
}


def anchor_of(setting: Setting, method: Method, rate: float, steps: int = 1) -> Plan:
    """Return the plan for the largest ε."""
    return Plan(
        method.law,
        devices=DEVICES,
        accuracy=LARGEST,
        steps=steps,
        local_steps=setting.local_steps[0],
        learning_rate=rate,
        upper_mixing=method.mixing,
        lower_mixing=method.mixing,
        terms=TERMS,
        initial_batch_size=method.initial_batch_size,
    )


def calibrate(setting: Setting, method: Method) -> dict[str, Any]:
    """Tune the rate at the largest ε; return it and the costs of each seed."""
    rates = admissible(method.law, method.mixing, setting.rates)
    result = passages(
        [anchor_of(setting, method, rate) for rate in rates],
        noise=Noise(method.noise),
        steps=CALIBRATION_STEPS,
        seeds=range(setting.tuning_seeds + setting.seeds),
    )
    tuned = tune(result, setting.tuning_seeds)
    return {
        "rate": rates[tuned.best],
        "inside": tuned.inside,
        "planned": tuned.median,
        **costs_of(result, tuned.steps, setting.local_steps[0]),
    }


def follow(setting: Setting, method: Method, plan: Plan) -> dict[str, Any]:
    """Run a plan; return the costs of each seed."""
    result = passages(
        [plan],
        noise=Noise(method.noise),
        steps=SLACK * plan.steps,
        seeds=range(setting.tuning_seeds, setting.tuning_seeds + setting.seeds),
    )
    return costs_of(result, result.steps[0].tolist(), plan.local_steps)


def costs_of(result: Passages, steps: list[float], local_steps: int) -> dict[str, Any]:
    """Return steps, samples and rounds to ε, infinite for runs that do not reach it."""
    rounds = [count / local_steps for count in steps]
    samples = [
        result.costs[int(count) - 1].samples if isfinite(count) else inf
        for count in rounds
    ]
    return {"steps": steps, "samples": samples, "rounds": rounds}


def draw(
    setting: Setting,
    results: dict[str, Any],
    slopes: dict[tuple[str, str], experiment.Slope],
    directory: Path,
) -> None:
    """Draw samples and rounds against ε, with the paper's powers."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    accuracies = np.array([setting.accuracy(p) for p in setting.local_steps])
    for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        for name, method in METHODS.items():
            taken = [results[f"{name}-{p}"][measure] for p in setting.local_steps]
            means = np.exp(np.mean(np.log(taken), axis=1))
            colour = COLOURS[name]
            for accuracy, seeds in zip(accuracies, taken, strict=True):
                axis.plot([accuracy] * len(seeds), seeds, ".", color=colour, alpha=0.3)
            power = method.powers[measure]
            slope = slopes[name, measure]
            legend = f"{name}, noise {method.noise:g}: {slope}"
            axis.plot(accuracies, means, MARKS[name], color=colour, label=legend)
            line = accuracies**power
            line *= np.exp(np.mean(np.log(means / line)))
            axis.plot(accuracies, line, "--", color=colour, label=f"paper: {power:g}")
            tilt = (accuracies / np.exp(np.mean(np.log(accuracies)))) ** BAND
            axis.fill_between(
                accuracies, line / tilt, line * tilt, color=colour, alpha=0.12, lw=0
            )
        axis.set(xscale="log", yscale="log", ylabel=label)
        axis.set_xlabel("ε, average stationarity")
        axis.set_xticks(accuracies, [f"{accuracy:.2g}" for accuracy in accuracies])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.invert_xaxis()
        axis.legend(fontsize=8)
    experiment.save_figure(figure, directory / "complexity.svg")


def draw_one_noise(setting: Setting, results: dict[str, Any], directory: Path) -> None:
    """Draw samples against ε: one panel per noise level, one line per algorithm."""
    figure, axes = plt.subplots(
        1, len(setting.levels), figsize=(9, 4), layout="constrained", squeeze=False
    )
    for axis, (which, level) in zip(axes[0], setting.levels.items(), strict=True):
        for name in one_noise.ALGORITHMS:
            taken = [result["samples"] for result in results[f"{name}-{which}"]]
            one_noise.draw_line(axis, name, level.accuracies, taken)
        axis.set(xscale="log", yscale="log", title=which)
        axis.set_xlabel("ε, average stationarity")
        axis.set_xticks(
            level.accuracies, [f"{epsilon:.2g}" for epsilon in level.accuracies]
        )
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.invert_xaxis()
        axis.legend()
    axes[0, 0].set_ylabel("samples, all devices")
    experiment.save_figure(figure, directory / "complexity-one-noise.svg")


def report_one_noise(setting: Setting, directory: Path) -> list[Bound]:
    """Run the four algorithms at each noise level, write tables, return bounds."""
    results = experiment.run_cells(
        "complexity-one-noise",
        setting,
        {
            f"{name}-{which}": partial(
                one_noise.race,
                setting.one_noise,
                name,
                devices=DEVICES,
                **level._asdict(),
            )
            for which, level in setting.levels.items()
            for name in one_noise.ALGORITHMS
        },
    )
    header = ["algorithm", "noise", "accuracy", *one_noise.HEADER]
    rows: list[list[object]] = []
    slopes: dict[str, experiment.Slope] = {}
    for which, level in setting.levels.items():
        for name in one_noise.ALGORITHMS:
            slopes[f"{name}, {which}"] = experiment.fit_slope(
                level.accuracies,
                [result["samples"] for result in results[f"{name}-{which}"]],
            )
            rows += [
                [name, which, accuracy, *one_noise.row(name, at(results, which, index))]
                for index, accuracy in enumerate(level.accuracies)
            ]
    print_table(header, [[experiment.short(cell) for cell in row] for row in rows])
    experiment.write_table(directory / "complexity-one-noise.csv", header, rows)
    experiment.write_slopes(
        directory / "complexity-one-noise-slopes.csv",
        "log samples on log ε, at one noise,",
        slopes,
    )
    draw_one_noise(setting, results, directory)
    every = {
        f"{key}-{index}": result
        for key, by_accuracy in results.items()
        for index, result in enumerate(by_accuracy)
    }
    return one_noise.bounds(every, at(results, "noisy", -1))


def at(results: dict[str, Any], which: str, index: int) -> dict[str, Any]:
    """Return the results of all four at a noise level and accuracy, by name."""
    return {name: results[f"{name}-{which}"][index] for name in one_noise.ALGORITHMS}


def main() -> None:
    arguments = experiment.arguments(__doc__, "3 accuracies and fewer seeds")
    setting = FAST if arguments.fast else FULL
    first = setting.local_steps[0]
    results = experiment.run_cells(
        "complexity-anchors",
        setting,
        {
            f"{name}-{first}": partial(calibrate, setting, method)
            for name, method in METHODS.items()
        },
    )
    plans = {}
    for name, method in METHODS.items():
        result = results[f"{name}-{first}"]
        anchor = anchor_of(setting, method, result["rate"], int(result["planned"]))
        for p in setting.local_steps:
            plans[f"{name}-{p}"] = plan_for_accuracy(
                anchor,
                devices=DEVICES,
                accuracy=setting.accuracy(p),
                contraction=noisy_quadratic.CONTRACTION,
            )
    results |= experiment.run_cells(
        "complexity",
        (setting, plans),
        {
            f"{name}-{p}": partial(follow, setting, method, plans[f"{name}-{p}"])
            for name, method in METHODS.items()
            for p in setting.local_steps[1:]
        },
    )
    accuracies = [setting.accuracy(p) for p in setting.local_steps]
    slopes = {
        (name, measure): experiment.fit_slope(
            accuracies, [results[f"{name}-{p}"][measure] for p in setting.local_steps]
        )
        for name in METHODS
        for measure in ("steps", *MEASURES)
    }
    header = [
        *("algorithm", "accuracy", "local_steps", "rate", "terms", "opening"),
        *("planned", "steps", "samples", "rounds"),
    ]
    rows: list[list[object]] = []
    for name in METHODS:
        for p in setting.local_steps:
            plan, taken = plans[f"{name}-{p}"], results[f"{name}-{p}"]
            rows.append(
                [
                    *(name, plan.accuracy, plan.local_steps, plan.learning_rate),
                    *(plan.terms, plan.initial_batch_size, plan.steps),
                    *(
                        round(np.exp(np.mean(np.log(taken[measure]))))
                        for measure in ("steps", *MEASURES)
                    ),
                ]
            )
    print_table(header, [[experiment.short(cell) for cell in row] for row in rows])
    experiment.write_table(arguments.directory / "complexity.csv", header, rows)
    experiment.write_slopes(
        arguments.directory / "complexity-slopes.csv",
        "its logarithm on log ε",
        {f"{name}, {measure}": slope for (name, measure), slope in slopes.items()},
    )
    draw(setting, results, slopes, arguments.directory)
    at_one_noise = report_one_noise(setting, arguments.directory)
    edges = sum(not results[f"{name}-{first}"]["inside"] for name in METHODS)
    bounds = [Bound("best rates at an end of the grid", edges, 0)]
    for name, method in METHODS.items():
        for measure, power in method.powers.items():
            gap = abs(slopes[name, measure].value - power)
            bounds.append(Bound(f"|{name} {measure} slope − ({power:g})|", gap, BAND))
    conclude([*bounds, *at_one_noise])


if __name__ == "__main__":
    main()
