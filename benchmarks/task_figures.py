"""The tables and plots of the real tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.contenders import AUTO
from benchmarks.experiment import half_width, save_figure
from benchmarks.task_bounds import (
    Results,
    below_no_tuning,
    failed_seeds,
    final_metrics,
    key_of,
    last_measurements,
    selection_loss,
)
from benchmarks.task_list import METRICS, Partition, partitions_of
from fedbilevel.mathematics.power_iteration import PRODUCTS

COSTS = {"samples": "samples", "exchanges": "exchanges", "bytes": "bytes, both ways"}
ONE = "FedBiO, one device"
HEADER = [
    "task",
    "partition",
    "method",
    "metric",
    "mean",
    "half_width",
    "seeds",
    "failed",
    "below_no_tuning",
    "selection_loss",
    "retrained",
    "detection",
    "steps",
    "samples",
    "oracle_calls",
    "exchanges",
    "megabytes",
    "setting",
    "at_edges",
    "full_runs",
]
STYLES = ("-", "--", "-.", ":")
DRAWN = Partition.RANDOM, Partition.HETEROGENEOUS


def methods_of(task: str, partition: Partition, methods: tuple[str, ...]) -> Any:
    """Return the methods on a partition, each with the key of its cell."""
    keys = {method: key_of(task, partition, method) for method in methods}
    return keys | {ONE: key_of(task, Partition.ONE, "FedBiO")}


def oracle_calls(method: str, cell: Any) -> float:
    """Return the number of evaluations of examples."""
    samples = last_measurements(cell)[0]["samples"]
    if method == AUTO:
        # An exchange has 4 batches in each of 5 steps. One of them is also evaluated by
        # the power iteration, once by its loss and by two gradients.
        return samples * (1 + (PRODUCTS + 3) / 20)
    if method == "FedNest":
        # A round draws a batch for each local step on y and x, whose gradient is
        # evaluated at two points, one for each term, and four others.
        setting = cell["setting"]
        steps = 2 * setting["local_steps"]
        return float(samples * (1 + steps / (4 + steps + setting["terms"])))
    return samples * (2 if cell["two_gradients"] else 1)


def table(
    results: Results, tasks: tuple[str, ...], methods: tuple[str, ...]
) -> tuple[list[str], list[list[object]]]:
    """Return a row for each task, partition and method, with 95 % half-widths."""
    rows: list[list[object]] = []
    for task in tasks:
        for name, value in results[f"{task}.references"]["metrics"].items():
            blank = [""] * (len(HEADER) - 5)
            rows.append([task, "pooled", name, METRICS[task], value, *blank])
        for partition in partitions_of(task):
            for method, key in methods_of(task, partition, methods).items():
                if method != ONE or partition is Partition.RANDOM:
                    where = "pooled" if method == ONE else partition
                    rows.append(_row(results, task, where, method, results[key]))
    return HEADER, rows


def _row(
    results: Results, task: str, partition: str, method: str, cell: Any
) -> list[object]:
    ends, finals = last_measurements(cell), final_metrics(cell, task)
    detections = [end["detection"] for end in ends if "detection" in end]
    setting = cell.get("setting", {})
    return [
        task,
        partition,
        method,
        METRICS[task],
        float(finals.mean()),
        float(half_width(finals)),
        " ".join(f"{value:.4f}" for value in finals),
        failed_seeds(cell),
        below_no_tuning(results, task, cell),
        selection_loss(cell),
        "" if cell["retrained"] is None else cell["retrained"],
        float(np.mean(detections)) if detections else "",
        ends[0]["steps"],
        ends[0]["samples"],
        round(oracle_calls(method, cell)),
        ends[0]["exchanges"],
        ends[0]["bytes"] / 1e6,
        " ".join(f"{name}={value:.3g}" for name, value in setting.items()),
        " ".join(cell.get("at_edges", ())),
        cell.get("full_runs", 0),
    ]


def summary(
    results: Results,
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    partition: Partition,
) -> tuple[list[str], list[list[str]]]:
    """Return the metric as text, one row per method and one column per task."""

    def text(task: str, cell: Any) -> str:
        values = final_metrics(cell, task)
        failures, worse = failed_seeds(cell), below_no_tuning(results, task, cell)
        marks = f", {failures} of {len(values)} failed" if failures else ""
        marks += f", {worse} below no tuning" if worse else ""
        return f"{values.mean():.3f} ({values.min():.3f}–{values.max():.3f}){marks}"

    tasks = _tasks_with(tasks, partition)
    rows_by_name: dict[str, dict[str, str]] = {}
    for task in tasks:
        for name, value in results[f"{task}.references"]["metrics"].items():
            rows_by_name.setdefault(name, {})[task] = f"{value:.3f}"
    return _by_task(results, tasks, methods, partition, rows_by_name, text)


def losses(
    results: Results,
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    partition: Partition,
) -> tuple[list[str], list[list[str]]]:
    """Return the upper loss on the selection examples, in the form of `summary`."""
    tasks = _tasks_with(tasks, partition)
    starts = {
        task: f"{results[key_of(task, partition, AUTO)]['start_loss']:.4f}"
        for task in tasks
    }

    def text(task: str, cell: Any) -> str:
        return f"{selection_loss(cell):.4f}"

    rows_by_name = {"at the start": starts}
    return _by_task(results, tasks, methods, partition, rows_by_name, text)


def _tasks_with(tasks: tuple[str, ...], partition: Partition) -> tuple[str, ...]:
    return tuple(task for task in tasks if partition in partitions_of(task))


def _by_task(
    results: Results,
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    partition: Partition,
    rows_by_name: dict[str, dict[str, str]],
    text: Callable[[str, Any], str],
) -> tuple[list[str], list[list[str]]]:
    for task in tasks:
        for method, key in methods_of(task, partition, methods).items():
            rows_by_name.setdefault(method, {})[task] = text(task, results[key])
    rows = [
        [name, *(row.get(task, "") for task in tasks)]
        for name, row in rows_by_name.items()
    ]
    return ["method", *tasks], rows


def costs(
    results: Results, task: str, methods: tuple[str, ...]
) -> tuple[list[str], list[list[str]]]:
    """Return the costs of each method on a task with a random split."""
    rows = []
    for method in methods:
        cell = results[key_of(task, Partition.RANDOM, method)]
        end = last_measurements(cell)[0]
        rows.append(
            [
                method,
                f"{end['steps']:,}",
                f"{end['samples']:,}",
                f"{round(oracle_calls(method, cell)):,}",
                f"{end['exchanges']:,}",
                f"{end['bytes'] / 1e6:,.0f}",
            ]
        )
    return ["method", "steps T", "samples", "oracle calls", "exchanges", "MB"], rows


def draw(
    results: Results, tasks: tuple[str, ...], methods: tuple[str, ...], directory: Path
) -> None:
    """Draw a figure for each task: the metric against samples, exchanges and bytes."""
    for task in tasks:
        figure, axes = plt.subplots(
            2, 3, figsize=(11, 6.5), sharey=True, layout="constrained"
        )
        for row, partition in zip(axes, DRAWN, strict=True):
            for axis, cost in zip(row, COSTS, strict=True):
                _panel(axis, results, task, partition, cost, methods)
                axis.set_xlabel(COSTS[cost])
            row[0].set_ylabel(f"{partition}\n{METRICS[task].replace('_', ' ')}, test")
        axes[0, 0].set_ylim(_limits(results, task, methods))
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
        figure.suptitle(f"{task}: mean of five seeds, their lowest and highest")
        save_figure(figure, directory / f"tasks-{task}.svg")


def _panel(
    axis: Any,
    results: Results,
    task: str,
    partition: Partition,
    cost: str,
    methods: tuple[str, ...],
) -> None:
    keys = methods_of(task, partition, methods)
    for number, (method, key) in enumerate(keys.items()):
        curves = [c for c in results[key]["curves"] if _converged(c)]
        if not curves:
            continue
        length = min(len(curve) for curve in curves)
        costs = [point[cost] for point in curves[0][:length]]
        values = np.array(
            [[point[METRICS[task]] for point in curve[:length]] for curve in curves]
        )
        style, colour = STYLES[number % len(STYLES)], f"C{number % 10}"
        width = 2.5 if method == AUTO else 1.2
        axis.plot(
            costs, values.mean(axis=0), style, color=colour, label=method, lw=width
        )
        low, high = values.min(axis=0), values.max(axis=0)
        axis.fill_between(costs, low, high, color=colour, alpha=0.1)
    references = results[f"{task}.references"]["metrics"]
    for number, (name, value) in enumerate(references.items()):
        style, grey = STYLES[number % len(STYLES)], 0.6 * (number // len(STYLES))
        axis.axhline(value, color=f"{grey}", lw=0.8, linestyle=style, label=name)
    if cost != "samples":  # the costs of one device and of FedNest differ by orders
        axis.set_xscale("log")
    axis.grid(alpha=0.3)


def _converged(curve: list[dict[str, float]]) -> bool:
    """Return whether a run did not diverge."""
    return bool(np.isfinite(curve[-1]["selection_loss"]))


def _limits(
    results: Results, task: str, methods: tuple[str, ...]
) -> tuple[float, float]:
    """Return a range that includes the references and most successful runs."""
    values = list(results[f"{task}.references"]["metrics"].values())
    for partition in DRAWN:
        for key in methods_of(task, partition, methods).values():
            values.append(float(final_metrics(results[key], task).mean()))
    low, high = float(np.percentile(values, 10)), max(values)
    margin = 0.25 * (high - low)
    return low - margin, high + 0.5 * margin
