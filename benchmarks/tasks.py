"""Every algorithm on real tasks, with the same tuning budget.

    python -m benchmarks.tasks            # all; about 2 hours on 2 cores
    python -m benchmarks.tasks --only cleaning-mnist
    python -m benchmarks.tasks --fast     # small versions, as in CI

A contender is tuned on a grid of 12 settings with a fifth of the samples, by the upper
loss on a fifth of the validation examples that no device holds; the best setting then
runs with 3 seeds. A run ends when its devices have drawn the budget of samples
together. Needs the data of `python -m benchmarks.fetch_data`.
"""

import argparse
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import experiment, task_figures
from benchmarks.contenders import (
    CONTENDERS,
    LOWER_STEPS,
    UPPER_STEPS,
    Steps,
    fedbio,
    grid,
)
from benchmarks.references import references, retrained
from benchmarks.task_list import CASES, Case
from benchmarks.timing import Bound, conclude, print_table
from fedbilevel import FederatedAlgorithm, InMemoryDevices, LocalExamples, run

CENTRALISED = "centralised"
PARTITIONS = {"iid": True, "heterogeneous": False}


class Setting(NamedTuple):
    """How much is run."""

    fast: bool
    samples: int
    tuning_share: float
    seeds: int
    total_batch: int
    evaluations: int
    terms: int
    tasks: tuple[str, ...]
    contenders: tuple[str, ...]


FULL = Setting(False, 1_000_000, 0.2, 3, 256, 10, 8, tuple(CASES), tuple(CONTENDERS))
FAST = Setting(
    True, 20_000, 0.2, 2, 32, 2, 2, ("cleaning-mnist",), ("LocalBSGVRM", "FedBiO")
)


@cache
def case_of(name: str, iid: bool, fast: bool) -> Case:
    return CASES[name](iid, fast)


def follow(
    case: Case,
    algorithm: FederatedAlgorithm,
    samples: float,
    evaluations: int,
    seed: int,
) -> tuple[list[dict[str, float]], Any]:
    """Run until the samples are drawn; return what was seen on the way, and the end."""
    task = case.task
    upper_loss = jax.jit(task.problem.upper_loss)
    seen: list[dict[str, float]] = []
    for done in run(
        task.problem, algorithm, task.devices, task.x, task.y, rounds=10**9, seed=seed
    ):
        if done.costs.samples < samples * (len(seen) + 1) / evaluations:
            continue
        loss = float(upper_loss(done.x, done.y, case.selection))
        metrics = {n: float(m(done.x, done.y)) for n, m in task.metrics.items()}
        seen.append(
            {
                "samples": done.costs.samples,
                "rounds": done.number + 1,
                "exchanges": done.costs.exchanges,
                "bytes": done.costs.bytes_up + done.costs.bytes_down,
                "selection_loss": loss,
                **metrics,
            }
        )
        if done.costs.samples >= samples or not np.isfinite(loss):
            break
    return seen, done


def compete(
    case: Case,
    make: Callable[[Steps], FederatedAlgorithm],
    setting: Setting,
    batch_size: int,
) -> dict[str, Any]:
    """Tune one contender and run its best setting with every seed."""
    settings = grid(case.task, case.upper_step, batch_size, setting.terms)
    if setting.fast:
        settings = settings[::3]
    short = setting.samples * setting.tuning_share
    losses = []
    for steps in settings:
        seen, _ = follow(case, make(steps), short, evaluations=1, seed=1000)
        loss = seen[-1]["selection_loss"]
        losses.append(loss if np.isfinite(loss) else float("inf"))
    best = settings[int(np.argmin(losses))]
    curves, retrainings = [], []
    for seed in range(setting.seeds):
        seen, done = follow(
            case, make(best), setting.samples, setting.evaluations, seed
        )
        curves.append(seen)
        if case.clean is not None:
            y = retrained(case, done.x)
            retrainings.append(case.task.metrics["accuracy"](done.x, y))
    return {
        "upper_step": best.upper,
        "lower_step": best.lower,
        "tuning_losses": losses,
        "curves": curves,
        "retrained": retrainings,
    }


def centralised(case: Case) -> Case:
    """Return the same task with all data on one device."""
    cohort = case.task.devices.cohort(np.arange(1))
    pooled = LocalExamples(
        jax.tree.map(np.asarray, cohort.upper.arrays),
        jax.tree.map(np.asarray, cohort.lower.arrays),
    )
    return case._replace(task=case.task._replace(devices=InMemoryDevices([pooled])))


def cells_of(name: str, setting: Setting) -> dict[str, Callable[[], Any]]:
    cells: dict[str, Callable[[], Any]] = {}

    def refer(iid: bool) -> dict[str, float]:
        return references(name, case_of(name, iid, setting.fast))

    def contend(contender: str, iid: bool) -> dict[str, Any]:
        case = case_of(name, iid, setting.fast)
        if contender == CENTRALISED:
            return compete(centralised(case), fedbio, setting, setting.total_batch)
        devices = case.task.devices.device_count
        batch_size = max(1, setting.total_batch // devices)
        return compete(case, CONTENDERS[contender], setting, batch_size)

    # The two partitions of a contender share its compiled programs: side by side.
    for partition, iid in PARTITIONS.items():
        cells[f"{name}.{partition}.references"] = partial(refer, iid)
    for contender in (*setting.contenders, CENTRALISED):
        for partition, iid in PARTITIONS.items():
            cells[f"{name}.{partition}.{contender}"] = partial(contend, contender, iid)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="small, as in CI")
    parser.add_argument("--only", choices=list(CASES), help="a single task")
    options = parser.parse_args()
    setting = FAST if options.fast else FULL
    names = (options.only,) if options.only else setting.tasks
    cells = {k: v for name in names for k, v in cells_of(name, setting).items()}
    results = experiment.run_cells("tasks", (setting, LOWER_STEPS, UPPER_STEPS), cells)
    if options.only:
        return
    folder = (
        experiment.ROOT / ".results" / "fast" if setting.fast else experiment.RESULTS
    )
    methods = (*setting.contenders, CENTRALISED)
    header, rows = task_figures.table(results, names, methods)
    print_table(header, [[experiment.short(cell) for cell in row] for row in rows])
    experiment.write_table(folder / "tasks.csv", header, rows)
    for partition in PARTITIONS:
        experiment.write_markdown(
            folder / f"tasks-{partition}.md",
            *task_figures.summary(results, names, methods, partition),
        )
    task_figures.draw(results, names, methods, folder)
    conclude(bounds(results, setting))


def bounds(results: dict[str, Any], setting: Setting) -> list[Bound]:
    """Return the promise about cleaning MNIST, kept by the best contender."""
    reference = results["cleaning-mnist.iid.references"]
    honest = max(
        reference[name]
        for name in ("no tuning", "validation data alone", "noisy and validation data")
    )
    gap = reference["clean labels"] - honest
    best_area = best_share = 0.0
    for contender in setting.contenders:
        cell = results[f"cleaning-mnist.iid.{contender}"]
        area = float(np.mean([curve[-1]["detection"] for curve in cell["curves"]]))
        share = (float(np.mean(cell["retrained"])) - honest) / gap
        best_area, best_share = max(best_area, area), max(best_share, share)
    if setting.fast:  # 600 examples cannot keep the promise, but must beat chance
        return [Bound("AUC", best_area, 0.6, True)]
    return [Bound("AUC", best_area, 0.9, True), Bound("gap", best_share, 0.5, True)]


if __name__ == "__main__":
    main()
