"""Noisy labels: redraw labels at random, and measure the detection of wrong ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import ArrayLike

from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.classification import area_under_curve
from fedbilevel.problems.split import Split
from fedbilevel.problems.task import TaskMetric


class NoisyLabels(NamedTuple):
    """Labels with noise.

    Attributes:
        labels: labels, some of them redrawn.
        wrong: mask of the labels that differ from the true labels.
    """

    labels: Int[np.ndarray, "examples"]
    wrong: Bool[np.ndarray, "examples"]


def redraw_labels(
    labels: Int[np.ndarray, "examples"], share: float, classes: int, seed: int = 0
) -> NoisyLabels:
    """Redraw a share of the labels, uniformly among all classes.

    A redrawn label may be right by chance: with C classes, share · (1 − 1/C) of all
    labels are wrong in expectation.

    Args:
        labels: true labels.
        share: share of the labels to redraw, rounded to a number of examples.
        classes: number of classes.
        seed: seed of the choice of examples and of their labels.

    Raises:
        ValueError: if the share is not between 0 and 1.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import redraw_labels
        >>> noisy = redraw_labels(np.zeros(1000, int), share=0.5, classes=10)
        >>> bool(400 < noisy.wrong.sum() < 500)  # 1000 · 0.5 · 0.9 in expectation
        True
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}, expected a number from 0 to 1.")
    generator = np.random.default_rng(seed)
    count = round(share * len(labels))
    rows = generator.choice(len(labels), count, replace=False)
    noisy = labels.copy()
    noisy[rows] = generator.integers(0, classes, count)
    return NoisyLabels(noisy, noisy != labels)


def detection(
    split: Split, wrong: Bool[np.ndarray, "examples"], trust: Callable[[Any], ArrayLike]
) -> TaskMetric:
    """Return a metric: the area under the curve of detecting wrong labels.

    It covers the training examples that some device holds.

    Args:
        split: examples and their devices.
        wrong: mask of the wrong training labels.
        trust: function from an upper variable to one score per training example; a
            small score marks a label as wrong.

    Raises:
        ValueError: if `wrong` has another shape, or devices hold only right or only
            wrong labels.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split
        >>> table = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> rows = [np.array([0, 1])]
        >>> split = Split(table, table, table, rows, rows, classes=2)
        >>> metric = detection(split, np.array([True, False]), trust=lambda x: x)
        >>> metric(np.array([0.2, 0.1]), None)
        0.0
    """
    count = len(split.training.labels)
    if wrong.shape != (count,):
        raise ValueError(
            f"wrong has shape {wrong.shape}, expected {(count,)}. Pass one boolean per "
            "training example."
        )
    held = np.unique(np.concatenate([np.asarray(r) for r in split.training_rows]))
    if len(np.unique(wrong[held])) < 2:
        raise ValueError(
            "wrong has the same value for all examples of the devices, so detection is "
            "undefined. Omit wrong."
        )

    def metric(x: Upper, y: Lower, /) -> float:
        return area_under_curve(-np.asarray(trust(x), float)[held], wrong[held])

    return metric
