"""Classes of unequal size: making them, and making up for them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike


def long_tail(
    labels: Int[np.ndarray, "examples"],
    classes: int,
    ratio: float = 100.0,
    seed: int = 0,
) -> Int[np.ndarray, "rows"]:
    """Return rows of which class c has n · ratio^{−c/(C−1)}, for the largest such n.

    Args:
        labels: of all examples.
        classes: C, the number of classes.
        ratio: of the commonest class's count to the rarest one's.
        seed: of the choice within a class.

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
            f"a long tail needs a ratio of at least 1 and 2 classes, but ratio={ratio} "
            f"and classes={classes}."
        )
    counts = np.bincount(labels, minlength=classes)
    _require_every_class(counts)
    shares = float(ratio) ** (-np.arange(classes) / (classes - 1))
    wanted = np.min(counts / shares) * shares
    # Rounding keeps a count that is whole but for the last bit of a power.
    sizes = np.maximum(1, np.floor(np.round(wanted, 6))).astype(int)
    generator = np.random.default_rng(seed)
    chosen = [
        generator.choice(np.flatnonzero(labels == label), size, replace=False)
        for label, size in enumerate(sizes)
    ]
    return np.sort(np.concatenate(chosen))


def class_weights(
    parts: Sequence[Int[np.ndarray, "_"]],
    classes: int,
    weights: ArrayLike | None = None,
) -> tuple[float, ...]:
    """Return 1 / (C p_c) of each class c, for p_c its share in the mean over devices.

    The mean over devices of the mean over examples of these weights is then one, and
    every class has the same part in it.

    Args:
        parts: the labels that each device holds.
        classes: C, the number of classes.
        weights: of the devices in that mean; all alike by default.

    Raises:
        ValueError: if no device holds an example of a class.

    Example:
        >>> import numpy as np
        >>> class_weights([np.array([0, 0, 0, 1])], classes=2)
        (0.6666666666666666, 2.0)
    """
    shares = [np.bincount(part, minlength=classes) / len(part) for part in parts]
    alike = np.ones(len(parts)) if weights is None else np.asarray(weights, float)
    mean = np.average(shares, axis=0, weights=alike)
    _require_every_class(mean)
    return tuple((1 / (classes * mean)).tolist())


def _require_every_class(counts: np.ndarray) -> None:
    for label in np.flatnonzero(counts == 0)[:1]:
        raise ValueError(
            f"no example has the label {label}, and every class needs one; deal some, "
            "or leave the class out and number the others anew."
        )
