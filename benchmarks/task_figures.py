"""The table and the figures of the real tasks."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from benchmarks.task_list import METRICS as METRIC_OF

mpl.use("Agg")
COSTS = {"samples": "samples", "rounds": "rounds", "bytes": "bytes, both ways"}
PARTITIONS = ("iid", "heterogeneous")
COLOURS = plt.get_cmap("tab10").colors
STYLES = ("-", "--", "-.", ":")


def table(
    results: dict[str, Any], tasks: tuple[str, ...], methods: tuple[str, ...]
) -> tuple[list[str], list[list[object]]]:
    """Return one row a task, partition and method."""
    header = [
        "task",
        "partition",
        "method",
        "metric",
        "mean",
        "deviation",
        "retrained",
        "detection",
        "samples",
        "rounds",
        "exchanges",
        "megabytes",
        "upper_step",
        "lower_step",
    ]
    rows: list[list[object]] = []
    for task in tasks:
        metric = METRIC_OF[task]
        for partition in PARTITIONS:
            first = [task, partition]
            for name, value in results[f"{task}.{partition}.references"].items():
                rows.append([*first, name, metric, value, *[""] * 9])
            for method in methods:
                cell = results[f"{task}.{partition}.{method}"]
                ends = [curve[-1] for curve in cell["curves"]]
                finals = np.array([end[metric] for end in ends])
                again = cell["retrained"]
                found = [end["detection"] for end in ends if "detection" in end]
                rows.append(
                    [
                        *first,
                        method,
                        metric,
                        float(finals.mean()),
                        float(finals.std(ddof=1)),
                        float(np.mean(again)) if again else "",
                        float(np.mean(found)) if found else "",
                        *(ends[0][cost] for cost in ("samples", "rounds", "exchanges")),
                        ends[0]["bytes"] / 1e6,
                        cell["upper_step"],
                        cell["lower_step"],
                    ]
                )
    return header, rows


def summary(
    results: dict[str, Any],
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    partition: str,
) -> tuple[list[str], list[list[str]]]:
    """Return one row a method and one column a task, for reading."""
    found: dict[str, dict[str, str]] = {}
    for task in tasks:
        for name, value in results[f"{task}.{partition}.references"].items():
            found.setdefault(name, {})[task] = f"{value:.3f}"
    for method in methods:
        for task in tasks:
            curves = results[f"{task}.{partition}.{method}"]["curves"]
            ends = np.array([curve[-1][METRIC_OF[task]] for curve in curves])
            text = f"{ends.mean():.3f} ± {ends.std(ddof=1):.3f}"
            found.setdefault(method, {})[task] = text
    rows = [
        [name, *(row.get(task, "") for task in tasks)] for name, row in found.items()
    ]
    return ["method", *tasks], rows


def draw(
    results: dict[str, Any],
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    folder: Path,
) -> None:
    """Draw one figure a task: the metric against samples, rounds and bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        figure, axes = plt.subplots(
            2, 3, figsize=(11, 6.5), sharey="row", layout="constrained"
        )
        for row, partition in zip(axes, PARTITIONS, strict=True):
            for axis, (cost, label) in zip(row, COSTS.items(), strict=True):
                _panel(axis, results, task, partition, cost, methods)
                axis.set_xlabel(label)
            row[0].set_ylabel(f"{partition}\n{METRIC_OF[task].replace('_', ' ')}, test")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
        figure.suptitle(task)
        figure.savefig(folder / f"tasks-{task}.svg", metadata={"Date": None})
        plt.close(figure)


def _panel(
    axis: Any,
    results: dict[str, Any],
    task: str,
    partition: str,
    cost: str,
    methods: tuple[str, ...],
) -> None:
    metric = METRIC_OF[task]
    for number, method in enumerate(methods):
        curves = results[f"{task}.{partition}.{method}"]["curves"]
        length = min(len(curve) for curve in curves)
        spent = [point[cost] for point in curves[0][:length]]
        values = np.array([[p[metric] for p in curve[:length]] for curve in curves])
        mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
        colour = COLOURS[number % len(COLOURS)]
        style = STYLES[number % len(STYLES)]
        axis.plot(spent, mean, style, color=colour, label=method, linewidth=1.5)
        axis.fill_between(spent, mean - spread, mean + spread, color=colour, alpha=0.15)
    for number, (name, value) in enumerate(
        results[f"{task}.{partition}.references"].items()
    ):
        axis.axhline(value, color="black", linewidth=0.8, linestyle=STYLES[number % 4])
        axis.text(
            1.0,
            value,
            name,
            fontsize=6,
            ha="right",
            va="bottom",
            transform=axis.get_yaxis_transform(),
        )
    axis.set_xscale("log")
    axis.grid(alpha=0.3)
