"""What the comparison on real tasks promises, computed from its cells."""

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


def ends_of(cell: Any) -> list[dict[str, float]]:
    """Return where each reported run ended."""
    return [curve[-1] for curve in cell["curves"]]


def figures_of(cell: Any, task: str) -> np.ndarray:
    """Return the test metric of each seed."""
    return np.array([end[METRICS[task]] for end in ends_of(cell)])


def failed(cell: Any) -> int:
    """Return how many seeds ended no better than at the start, or detect by chance."""
    return sum(
        not end["selection_loss"] < cell["start_loss"] or end.get("detection", 1) < 0.5
        for end in ends_of(cell)
    )


def selection_loss(cell: Any) -> float:
    """Return the mean upper loss on the selection examples, where runs ended."""
    return float(np.mean([end["selection_loss"] for end in ends_of(cell)]))


def below_no_tuning(results: Results, task: str, cell: Any) -> int:
    """Return how many seeds end with a lower metric than the model before tuning."""
    untuned = results[f"{task}.references"]["metrics"]["no tuning"]
    return int((figures_of(cell, task) < untuned).sum())


def gap(results: Results, task: str, partition: Partition) -> float:
    """Return how far "auto" is behind the best searched contender."""
    return _best(results, task, partition, SEARCHED) - _best(
        results, task, partition, [AUTO]
    )


def lead(results: Results, task: str) -> float:
    """Return how far "auto" is ahead of the published methods where it is least so."""
    return min(
        _best(results, task, partition, [AUTO])
        - _best(results, task, partition, PUBLISHED)
        for partition in BOTH
    )


def bounds(results: Results, tasks: Sequence[str]) -> list[Bound]:
    """Return what is promised, with the figures."""
    area, share = _cleaning(results)
    if len(tasks) == 1:  # 600 examples cannot keep the promises, but must beat chance
        return [Bound("AUC", area, 0.6, True)]
    gaps = [gap(results, task, partition) for task in tasks for partition in BOTH]
    leads = sorted(lead(results, task) for task in tasks)
    automatic = sum(
        failed(results[key_of(task, partition, AUTO)])
        for task in tasks
        for partition in partitions_of(task)
    )
    papers = sum(
        failed(results[key_of(task, Partition.SHARED, method)])
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
    return max(float(figures_of(cell, task).mean()) for cell in cells)


def _cleaning(results: Results) -> tuple[float, float]:
    """Return what the contender that the selection examples choose gets at cleaning.

    The area under the curve of its detection, and the part of the gap between the best
    reference that cleans nothing and clean labels that a model trained on its weights
    closes.
    """
    start = f"{CLEANED}.{Partition.RANDOM}."
    cells = [cell for name, cell in results.items() if name.startswith(start)]
    ended = (cell for cell in cells if np.isfinite(selection_loss(cell)))
    chosen = min(ended, key=selection_loss)
    area = float(np.mean([end["detection"] for end in ends_of(chosen)]))
    reference = dict(results[f"{CLEANED}.references"]["metrics"])
    clean, _ = reference.pop(CLEAN), reference.pop(SMALLEST, None)
    without = max(reference.values())
    return area, (chosen["retrained"] - without) / (clean - without)
