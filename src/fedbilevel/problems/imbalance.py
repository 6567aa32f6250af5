"""Class imbalance: subsample a long tail, and weigh classes to balance them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike

from fedbilevel.plurals import count_noun


def long_tail(
    labels: Int[np.ndarray, "examples"],
    classes: int,
    ratio: float = 100.0,
    seed: int = 0,
) -> Int[np.ndarray, "rows"]:
    """Return rows of which class c has n · ratio^{−c/(C−1)}, for the largest such n.

    Args:
        labels: labels of all examples.
        classes: C, the number of classes.
        ratio: count of the most frequent class divided by that of the rarest class.
        seed: seed of the choice within a class.

    Returns:
        Row numbers, in ascending order.

    Raises:
        ValueError: if a class has no example, or the ratio is below 1.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import long_tail
        >>> labels = np.repeat(np.arange(3), 100)
        >>> np.bincount(labels[long_tail(labels, classes=3)])
        array([100,  10,   1])
    """
    if not ratio >= 1 or classes < 2:
        raise ValueError(
            f"long_tail: ratio={ratio} and classes={classes}, expected a ratio of at "
            "least 1 and at least 2 classes."
        )
    counts = np.bincount(labels, minlength=classes)
    _require_every_class(counts, f"among {len(labels)} labels")
    shares = float(ratio) ** (-np.arange(classes) / (classes - 1))
    targets = np.min(counts / shares) * shares
    # Without rounding, floor would lower a whole count by an error in its last bit.
    sizes = np.maximum(1, np.floor(np.round(targets, 6))).astype(int)
    generator = np.random.default_rng(seed)
    rows = [
        generator.choice(np.flatnonzero(labels == label), size, replace=False)
        for label, size in enumerate(sizes)
    ]
    return np.sort(np.concatenate(rows))


def class_weights(
    parts: Sequence[Int[np.ndarray, "_"]],
    classes: int,
    weights: ArrayLike | None = None,
) -> tuple[float, ...]:
    """Return 1 / (C p_c) of each class c, for p_c its share in the mean over devices.

    The mean over devices of the mean over examples of these weights is then 1, and
    every class has the same share in it.

    Args:
        parts: labels of each device.
        classes: C, the number of classes.
        weights: weights of the devices in that mean; equal by default.

    Raises:
        ValueError: if no device holds an example of a class.

    Example:
        >>> import numpy as np
        >>> class_weights([np.array([0, 0, 0, 1])], classes=2)
        (0.6666666666666666, 2.0)
    """
    shares = [np.bincount(part, minlength=classes) / len(part) for part in parts]
    factors = np.ones(len(parts)) if weights is None else np.asarray(weights, float)
    mean = np.average(shares, axis=0, weights=factors)
    _require_every_class(mean, f"on {count_noun(len(parts), 'device')}")
    return tuple((1 / (classes * mean)).tolist())


def _require_every_class(counts: np.ndarray, where: str) -> None:
    for label in np.flatnonzero(counts == 0)[:1]:
        raise ValueError(
            f"No example has the label {label} {where}. Add examples of that class, "
            "or remove the class and renumber the others."
        )
