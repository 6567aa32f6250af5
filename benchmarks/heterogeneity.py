"""Limit points of every method on heterogeneous devices, and the diagnosis.

    python -m benchmarks.heterogeneity [--fast]

The problem is a quadratic with closed forms and deterministic oracles. The devices'
matrices, couplings and targets differ by a chosen amount about one mean, so x* does not
depend on the amount. The table has, for each method, its final distance from x* and
from the point where the mean of the devices' local hypergradients is zero, with one and
with several local steps and at several rates; and the result of `diagnose` at each
amount of heterogeneity.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib import pyplot as plt

from benchmarks import experiment
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel import (
    ConjugateGradient,
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    FedNest,
    LFedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    Run,
    ShroFBO,
    SimFBO,
    sweep,
)
from fedbilevel.metrics import Verdict, diagnose
from fedbilevel.problems import quadratic_task, random_quadratic

DEVICES = 8
AMOUNTS = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)
UNSTABLE = 0.8
"""An amount at which a device's curvature is nearly zero and the biased point is
unstable."""
DRIFT_AT = 0.4
"""The heterogeneity of the plot of the drift of several local steps."""
RATES = (0.04, 0.02, 0.01)
STEPS = 8_000
FAST_STEPS = 3_000
TOLERANCE = 0.1
"""The tolerance of `diagnose`."""
EXACT = ConjugateGradient(tolerance=1e-13)

Make = Callable[[float, int], FederatedAlgorithm]
CORRECT: dict[str, Make] = {
    "FedNest": lambda rate, p: FedNest(
        rate, NeumannSeries(80, 0.2), 2.0, 2.0, lower_steps=p, local_steps=p
    ),
    "FedBiO": lambda rate, p: FedBiO(rate, local_steps=p),
    "FedBiOAcc": lambda rate, p: FedBiOAcc(
        rate,
        upper_mixing=0.5 / rate**2,
        lower_mixing=0.5 / rate**2,
        adjoint_mixing=0.5 / rate**2,
        local_steps=p,
    ),
    "SimFBO": lambda rate, p: SimFBO(rate, server_rate=2.0, local_steps=p),
    "ShroFBO": lambda rate, p: ShroFBO(rate, server_rate=2.0, local_steps=p),
}
BIASED: dict[str, Make] = {
    "LocalBSGM": lambda rate, p: LocalBSGM(
        rate, EXACT, upper_mixing=0.5 / rate, lower_mixing=0.5 / rate, local_steps=p
    ),
    "LocalBSGVRM": lambda rate, p: LocalBSGVRM(
        rate,
        EXACT,
        upper_mixing=0.5 / rate**2,
        lower_mixing=0.5 / rate**2,
        local_steps=p,
    ),
    "LFedNest": lambda rate, p: LFedNest(
        rate, EXACT, lower_steps=p, local_steps=p, lower_rounds=1
    ),
}


def distances(
    make: Make, local_steps: int, amount: float, steps: int
) -> list[list[float]]:
    """Return the distances from x* and from the biased point for each rate."""
    with jax.enable_x64(True):
        quadratic = random_quadratic(devices=DEVICES, heterogeneity=amount, seed=0)
        task = quadratic_task(quadratic, examples=1)
        settings = [make(rate, local_steps) for rate in RATES]
        inputs = task.problem, settings[0], task.devices, task.x, task.y
        swept = sweep(
            Run(*inputs, rounds=steps // local_steps),
            settings,
            seeds=[0],
            measure=lambda server: server.x,
        )
        ends = np.asarray(swept.measurements)[:, 0, -1]
    solution, (biased, _) = quadratic.solution(), quadratic.biased_solution()
    return [
        [float(np.linalg.norm(end - solution)), float(np.linalg.norm(end - biased))]
        for end in ends
    ]


def verdict(amount: float) -> dict[str, Any]:
    with jax.enable_x64(True):
        quadratic = random_quadratic(devices=DEVICES, heterogeneity=amount, seed=0)
        task = quadratic_task(quadratic, examples=50, noise=0.3)
        diagnosis = diagnose(
            task.problem, task.devices, task.x, task.y, tolerance=TOLERANCE
        )
    x, y = np.asarray(task.x), quadratic.lower_solution(np.asarray(task.x))
    exact = quadratic.mean_local_hypergradient(x, y) - quadratic.hypergradient(x)
    hypergradient = quadratic.hypergradient(x)
    indirect = quadratic.shifts.mean(0) + quadratic.ridge * x - hypergradient
    size = max(np.linalg.norm(hypergradient), np.linalg.norm(indirect))
    return {
        "distance": diagnosis.distance,
        "low": diagnosis.low,
        "high": diagnosis.high,
        "exact": float(np.linalg.norm(exact) / size),
        "verdict": diagnosis.verdict.name,
    }


def main() -> None:
    fast, directory = experiment.arguments(
        __doc__, "two amounts, two methods, fewer steps"
    )
    amounts = (0.0, 0.4) if fast else AMOUNTS
    steps = FAST_STEPS if fast else STEPS
    names = ("FedBiO", "LocalBSGM") if fast else (*CORRECT, *BIASED)
    cells: dict[str, Callable[[], Any]] = {
        f"{name}.{local_steps}.{amount}": partial(
            distances, (CORRECT | BIASED)[name], local_steps, amount, steps
        )
        for name in names
        for local_steps in (1, 5)
        for amount in amounts
    }
    setting = (amounts, steps)
    results = experiment.run_cells("heterogeneity", setting, cells)
    header = [
        "method",
        "local_steps",
        "heterogeneity",
        "rate",
        "to_solution",
        "to_biased",
    ]
    rows: list[list[object]] = [
        [name, local_steps, amount, rate, *pair]
        for name in names
        for local_steps in (1, 5)
        for amount in amounts
        for rate, pair in zip(
            RATES, results[f"{name}.{local_steps}.{amount}"], strict=True
        )
    ]
    print_table(header, [[experiment.short(cell) for cell in row] for row in rows])
    experiment.write_table(directory / "heterogeneity.csv", header, rows)
    draw(results, names, amounts, directory)
    by_amount = diagnoses(amounts, directory)
    conclude([*bounds(results, names, amounts), *diagnosis_bounds(by_amount)])


def diagnoses(
    amounts: tuple[float, ...], directory: Path
) -> dict[float, dict[str, Any]]:
    """Write the results of `diagnose` and the closed form; this takes seconds.

    python -c "from benchmarks import experiment, heterogeneity as h;
               h.diagnoses(h.AMOUNTS, experiment.RESULTS)"
    """
    cells = {f"{amount}": partial(verdict, amount) for amount in amounts}
    results = experiment.run_cells("diagnosis", amounts, cells)
    by_amount = {amount: results[f"{amount}"] for amount in amounts}
    rows: list[list[object]] = [[a, *row.values()] for a, row in by_amount.items()]
    titles = ["heterogeneity", "distance", "low", "high", "exact", "verdict"]
    print_table(titles, [[experiment.short(cell) for cell in row] for row in rows])
    experiment.write_table(directory / "diagnosis.csv", titles, rows)
    return by_amount


def diagnosis_bounds(by_amount: dict[float, dict[str, Any]]) -> list[Bound]:
    errors = [
        abs(row["distance"] - row["exact"]) / max(1.0, row["exact"])
        for row in by_amount.values()
    ]
    correct = all(
        row["verdict"]
        == (
            Verdict.HOMOGENEOUS if row["exact"] <= TOLERANCE else Verdict.HETEROGENEOUS
        ).name
        for row in by_amount.values()
    )
    return [
        Bound("diagnosis error", max(errors), 1e-6),
        Bound("diagnosis correct", float(correct), 1.0, True),
    ]


def bounds(
    results: dict[str, Any], names: tuple[str, ...], amounts: tuple[float, ...]
) -> list[Bound]:
    limits = []
    for name in names:
        pairs = [results[f"{name}.1.{amount}"][0] for amount in amounts]
        if name in CORRECT:
            limits.append(Bound(f"{name} to x*", max(p[0] for p in pairs), 1e-6))
            drift = [pair[0] for pair in results[f"{name}.5.{DRIFT_AT}"]]
            if drift[0] > 1e-6:
                limits.append(Bound(f"{name} drift ratio", drift[1] / drift[0], 0.65))
        else:
            ends = {a: p[1] for a, p in zip(amounts, pairs, strict=True)}
            away = ends.pop(UNSTABLE, None)
            limits.append(Bound(f"{name} to biased", max(ends.values()), 1e-4))
            if away is not None:
                limits.append(Bound(f"{name} at {UNSTABLE} away", away, 1.0, True))
    return limits


def draw(
    results: dict[str, Any],
    names: tuple[str, ...],
    amounts: tuple[float, ...],
    directory: Path,
) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for number, name in enumerate(names):
        style = "o-" if name in CORRECT else "s--"
        colour = f"C{number}"
        ends = [results[f"{name}.1.{amount}"][0][0] for amount in amounts]
        left.plot(amounts, np.maximum(ends, 1e-13), style, color=colour, label=name)
        drift = [pair[0] for pair in results[f"{name}.5.{DRIFT_AT}"]]
        right.loglog(RATES, np.maximum(drift, 1e-13), style, color=colour, label=name)
    left.set(
        xlabel="heterogeneity",
        ylabel="final distance from x*",
        yscale="log",
        title="one local step per exchange",
    )
    right.set(
        xlabel="learning rate", title=f"five local steps, heterogeneity {DRIFT_AT}"
    )
    left.legend(fontsize=8)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    experiment.save_figure(figure, directory / "heterogeneity.svg")


if __name__ == "__main__":
    main()
