"""Wrong labels: making them, and judging how well they are found."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import ArrayLike

from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.classification import area_under_curve
from fedbilevel.problems.split import Split
from fedbilevel.problems.task import Metric


class NoisyLabels(NamedTuple):
    """Labels with noise.

    Attributes:
        labels: the labels, some of them redrawn.
        wrong: which of them differ from the true ones.

    Example:
        >>> import numpy as np
        >>> NoisyLabels(np.array([0, 1]), np.array([False, True])).wrong.tolist()
        [False, True]
    """

    labels: Int[np.ndarray, "examples"]
    wrong: Bool[np.ndarray, "examples"]


def redraw_labels(
    labels: Int[np.ndarray, "examples"], share: float, classes: int, seed: int = 0
) -> NoisyLabels:
    """Redraw a share of the labels, uniformly among all classes.

    A redrawn label may come out right: of C classes, share · (1 − 1/C) of all labels
    are wrong in expectation.

    Args:
        labels: the true labels.
        share: of the labels to redraw, rounded to a number of examples.
        classes: the number of classes.
        seed: of the choice of examples and of their labels.

    Raises:
        ValueError: if the share is not between 0 and 1.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import redraw_labels
        >>> drawn = redraw_labels(np.zeros(1000, int), share=0.5, classes=10)
        >>> bool(400 < drawn.wrong.sum() < 500)  # 1000 · 0.5 · 0.9 in expectation
        True
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie between 0 and 1, but it is {share}.")
    generator = np.random.default_rng(seed)
    count = round(share * len(labels))
    rows = generator.choice(len(labels), count, replace=False)
    redrawn = labels.copy()
    redrawn[rows] = generator.integers(0, classes, count)
    return NoisyLabels(redrawn, redrawn != labels)


def detection(
    split: Split, wrong: Bool[np.ndarray, "examples"], trust: Callable[[Any], ArrayLike]
) -> Metric:
    """Return the metric: how well little trust singles out wrong labels.

    It is the area under the curve over the training examples that some device holds.

    Args:
        split: the examples, and who holds which.
        wrong: which training labels are wrong.
        trust: returns, for an upper variable, a number a training example that is small
            where its label is little trusted.

    Raises:
        ValueError: if `wrong` does not tell right from wrong training labels.

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
            f"wrong has shape {wrong.shape}, but there are {count} training examples; "
            "give one truth value an example."
        )
    held = np.unique(np.concatenate([np.asarray(r) for r in split.training_rows]))
    if len(np.unique(wrong[held])) < 2:
        raise ValueError(
            "devices hold no wrong label, or wrong ones only, so none can be told from "
            "the others; leave wrong out."
        )

    def metric(x: Upper, y: Lower, /) -> float:
        return area_under_curve(-np.asarray(trust(x), float)[held], wrong[held])

    return metric
