"""The tables and the figures of the real tasks."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.experiment import half_width, save_figure
from benchmarks.task_list import METRICS as METRIC_OF

Results = dict[str, Any]
COSTS = {"samples": "samples", "rounds": "rounds", "bytes": "bytes, both ways"}
PARTITIONS = ("iid", "heterogeneous")
CENTRALISED = "centralised"
HEADER = [
    "task",
    "partition",
    "method",
    "metric",
    "mean",
    "half_width",
    "failed",
    "retrained",
    "detection",
    "samples",
    "rounds",
    "exchanges",
    "megabytes",
    "upper_step",
    "lower_step",
    "terms",
    "at_edge",
]
STYLES = ("-", "--", "-.", ":")


def cell_of(results: Results, task: str, partition: str, method: str) -> Any:
    """Return a contender's cell; a centralised one has no partition."""
    if method == CENTRALISED:
        return results[f"{task}.{CENTRALISED}"]
    return results[f"{task}.{partition}.{method}"]


def table(
    results: Results, tasks: tuple[str, ...], contenders: tuple[str, ...]
) -> tuple[list[str], list[list[object]]]:
    """Return one row a task, partition and method, with 95 % half-widths."""
    rows: list[list[object]] = []
    for task in tasks:
        metric = METRIC_OF[task]
        references = results[f"{task}.references"]
        for name, value in references["metrics"].items():
            rows.append([task, "pooled", name, metric, value, *[""] * 12])
        start = references["start_loss"]
        cell = results[f"{task}.{CENTRALISED}"]
        rows.append(_row(task, "pooled", CENTRALISED, cell, start))
        for partition in PARTITIONS:
            for method in contenders:
                cell = cell_of(results, task, partition, method)
                rows.append(_row(task, partition, method, cell, start))
    return HEADER, rows


def _failed(cell: Any, start: float) -> int:
    """Return how many seeds ended no better than where all began."""
    ends = np.array([curve[-1]["selection_loss"] for curve in cell["curves"]])
    return int((~(ends < start)).sum())


def _row(
    task: str, partition: str, method: str, cell: Any, start: float
) -> list[object]:
    metric = METRIC_OF[task]
    ends = [curve[-1] for curve in cell["curves"]]
    finals = np.array([end[metric] for end in ends])
    again = cell["retrained"]
    found = [end["detection"] for end in ends if "detection" in end]
    return [
        task,
        partition,
        method,
        metric,
        float(finals.mean()),
        float(half_width(finals)),
        _failed(cell, start),
        float(np.mean(again)) if again else "",
        float(np.mean(found)) if found else "",
        *(ends[0][cost] for cost in ("samples", "rounds", "exchanges")),
        ends[0]["bytes"] / 1e6,
        cell["upper_step"],
        cell["lower_step"],
        cell["terms"],
        "yes" if cell["at_edge"] else "no",
    ]


def summary(
    results: Results,
    tasks: tuple[str, ...],
    contenders: tuple[str, ...],
    partition: str,
) -> tuple[list[str], list[list[str]]]:
    """Return one row a method and one column a task, for reading."""
    found: dict[str, dict[str, str]] = {}
    for task in tasks:
        for name, value in results[f"{task}.references"]["metrics"].items():
            found.setdefault(name, {})[task] = f"{value:.3f}"
    for method in (*contenders, CENTRALISED):
        for task in tasks:
            cell = cell_of(results, task, partition, method)
            ends = np.array([curve[-1][METRIC_OF[task]] for curve in cell["curves"]])
            text = f"{ends.mean():.3f} ± {float(half_width(ends)):.3f}"
            failed = _failed(cell, results[f"{task}.references"]["start_loss"])
            text += f" ({failed} of {len(ends)} failed)" if failed else ""
            found.setdefault(method, {})[task] = text
    rows = [
        [name, *(row.get(task, "") for task in tasks)] for name, row in found.items()
    ]
    return ["method", *tasks], rows


def draw(
    results: Results,
    tasks: tuple[str, ...],
    contenders: tuple[str, ...],
    folder: Path,
) -> None:
    """Draw one figure a task: the metric against samples, rounds and bytes."""
    for task in tasks:
        figure, axes = plt.subplots(
            2, 3, figsize=(11, 6.5), sharey=True, layout="constrained"
        )
        for row, partition in zip(axes, PARTITIONS, strict=True):
            for axis, (cost, label) in zip(row, COSTS.items(), strict=True):
                _panel(axis, results, task, partition, cost, contenders)
                axis.set_xlabel(label)
            row[0].set_ylabel(f"{partition}\n{METRIC_OF[task].replace('_', ' ')}, test")
        axes[0, 0].set_ylim(_limits(results, task, contenders))
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
        figure.suptitle(f"{task}: mean of seeds and its 95 % confidence band")
        save_figure(figure, folder / f"tasks-{task}.svg")


def _panel(
    axis: Any,
    results: Results,
    task: str,
    partition: str,
    cost: str,
    contenders: tuple[str, ...],
) -> None:
    metric = METRIC_OF[task]
    for number, method in enumerate((*contenders, CENTRALISED)):
        curves = cell_of(results, task, partition, method)["curves"]
        length = min(len(curve) for curve in curves)
        spent = [point[cost] for point in curves[0][:length]]
        values = np.array([[p[metric] for p in curve[:length]] for curve in curves])
        mean, width = values.mean(axis=0), half_width(values)
        style, colour = STYLES[number % len(STYLES)], f"C{number}"
        axis.plot(spent, mean, style, color=colour, label=method, linewidth=1.5)
        axis.fill_between(spent, mean - width, mean + width, color=colour, alpha=0.15)
    references = results[f"{task}.references"]["metrics"]
    for style, (name, value) in zip(STYLES, references.items(), strict=False):
        axis.axhline(value, color="black", linewidth=0.8, linestyle=style, label=name)
    if cost == "bytes":  # all on one device sends next to nothing
        axis.set_xscale("log")
    axis.grid(alpha=0.3)


def _limits(
    results: Results, task: str, contenders: tuple[str, ...]
) -> tuple[float, float]:
    """Return the range that holds the references and most of what is not a failure."""
    metric = METRIC_OF[task]
    values = list(results[f"{task}.references"]["metrics"].values())
    for partition in PARTITIONS:
        for method in (*contenders, CENTRALISED):
            curves = cell_of(results, task, partition, method)["curves"]
            values += [float(np.mean([curve[-1][metric] for curve in curves]))]
    low, high = float(np.percentile(values, 10)), max(values)
    margin = 0.25 * (high - low)
    return low - margin, high + 0.5 * margin
