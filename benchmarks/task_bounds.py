"""Bounds of the comparison on real tasks, computed from its cells."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.contenders import AUTO, PUBLISHED, SEARCHED
from benchmarks.references import CLEAN, SMALLEST
from benchmarks.task_list import METRICS, Partition, partitions_of
from benchmarks.timing import Bound

BOTH = Partition.RANDOM, Partition.HETEROGENEOUS
THE_PAPERS = "LocalBSGM", "LocalBSGVRM"
CLEANED = "cleaning-mnist"

Results = dict[str, Any]


def key_of(task: str, partition: Partition, method: str) -> str:
    return f"{task}.{partition}.{method}"


def last_measurements(cell: Any) -> list[dict[str, float]]:
    """Return the last measurement of each reported run."""
    return [curve[-1] for curve in cell["curves"]]


def final_metrics(cell: Any, task: str) -> np.ndarray:
    """Return the test metric of each seed."""
    return np.array([end[METRICS[task]] for end in last_measurements(cell)])


def failed_seeds(cell: Any) -> int:
    """Return the number of seeds that do not improve or detect worse than chance."""
    return sum(
        not end["selection_loss"] < cell["start_loss"] or end.get("detection", 1) < 0.5
        for end in last_measurements(cell)
    )


def selection_loss(cell: Any) -> float:
    """Return the mean final upper loss on the selection examples."""
    return float(np.mean([end["selection_loss"] for end in last_measurements(cell)]))


def below_no_tuning(results: Results, task: str, cell: Any) -> int:
    """Return the number of seeds with a lower final metric than without tuning."""
    untuned = results[f"{task}.references"]["metrics"]["no tuning"]
    return int((final_metrics(cell, task) < untuned).sum())


def gap(results: Results, task: str, partition: Partition) -> float:
    """Return the difference of the best searched contender's metric and "auto"."""
    return _best(results, task, partition, SEARCHED) - _best(
        results, task, partition, [AUTO]
    )


def lead(results: Results, task: str) -> float:
    """Return the smallest lead of "auto" over the best published method."""
    return min(
        _best(results, task, partition, [AUTO])
        - _best(results, task, partition, PUBLISHED)
        for partition in BOTH
    )


def bounds(results: Results, tasks: Sequence[str]) -> list[Bound]:
    """Return the bounds with their measured values."""
    area, share = _cleaning(results)
    if len(tasks) == 1:  # with 600 examples it must only exceed chance
        return [Bound("AUC", area, 0.6, True)]
    gaps = [gap(results, task, partition) for task in tasks for partition in BOTH]
    leads = sorted(lead(results, task) for task in tasks)
    automatic = sum(
        failed_seeds(results[key_of(task, partition, AUTO)])
        for task in tasks
        for partition in partitions_of(task)
    )
    papers = sum(
        failed_seeds(results[key_of(task, Partition.SHARED, method)])
        for task in tasks
        for method in THE_PAPERS
        if Partition.SHARED in partitions_of(task)
    )
    return [
        Bound("auto behind the best searched, at most", max(gaps), 0.005, False),
        Bound("auto ahead of the published, second task", leads[-2], 0.008, True),
        Bound("failed seeds of auto", automatic, 0, False),
        Bound("failed seeds of the paper's two, shared", papers, 0, False),
        Bound("AUC", area, 0.9, True),
        Bound("gap", share, 0.5, True),
    ]


def _best(
    results: Results, task: str, partition: Partition, methods: Iterable[str]
) -> float:
    cells = (results[key_of(task, partition, method)] for method in methods)
    return max(float(final_metrics(cell, task).mean()) for cell in cells)


def _cleaning(results: Results) -> tuple[float, float]:
    """Return the results of the contender with the best selection loss at cleaning.

    The first is the area under the curve of its detection. The second is the fraction
    of the gap between the best reference without cleaning and clean labels that a model
    trained with its weights closes.
    """
    start = f"{CLEANED}.{Partition.RANDOM}."
    cells = [cell for name, cell in results.items() if name.startswith(start)]
    ended = (cell for cell in cells if np.isfinite(selection_loss(cell)))
    chosen = min(ended, key=selection_loss)
    area = float(np.mean([end["detection"] for end in last_measurements(chosen)]))
    reference = dict(results[f"{CLEANED}.references"]["metrics"])
    clean, _ = reference.pop(CLEAN), reference.pop(SMALLEST, None)
    without = max(reference.values())
    return area, (chosen["retrained"] - without) / (clean - without)
