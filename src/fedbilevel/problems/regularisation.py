"""Regularisation: a penalty for each feature, tuned on validation examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.mathematics.problem import BilevelProblem, Upper
from fedbilevel.mathematics.settings import Positive, check_ranges
from fedbilevel.picture import BARS, Picture, blank
from fedbilevel.problems.built_in import template
from fedbilevel.problems.classification import linear_accuracy, linear_loss
from fedbilevel.problems.split import (
    LabelledRows,
    Split,
    SplitData,
    build_devices,
    tables,
)
from fedbilevel.problems.task import Task


def regularisation(split: Split, *, penalty: float = 1.0) -> Task:
    """Return softmax regression with a penalty e^{x_j} on the weights of feature j.

    For ℓ the cross-entropy of softmax regression with weights y (classes × features),

        g(x, y) = mean over training examples of ℓ(y) + ½ Σ_j e^{x_j} ‖y_j‖²,
        f(x, y) = mean over validation examples of ℓ(y),

    where y_j are the weights of feature j. With two classes this is logistic
    regression. y starts at zero. The metric `accuracy` is the accuracy of y on test
    examples.

    Args:
        split: examples and their devices.
        penalty: initial value of every e^{x_j}, above zero.

    Raises:
        ValueError: if the split's tables and rows do not fit together.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split, regularisation
        >>> table = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> rows = [np.array([0, 1])]
        >>> task = regularisation(Split(table, table, table, rows, rows, classes=2))
        >>> task.x.shape, task.y.shape
        ((2,), (2, 2))
        >>> task.metrics["accuracy"](task.x, np.eye(2))
        1.0
    """
    if not penalty > 0:
        raise ValueError(
            f"penalty is {penalty}, expected a number above 0: without a penalty the "
            "lower loss is not strongly convex."
        )
    training, validation, test = tables(split)
    features, number = test.features.shape[1], jnp.result_type(test.features)
    return Task(
        BilevelProblem(linear_loss, lower_loss),
        build_devices(split, training=training, validation=validation),
        jnp.full(features, np.log(penalty), number),
        jnp.zeros((split.classes, features), number),
        {"accuracy": linear_accuracy(test)},
    )


def lower_loss(
    x: Float[Array, "features"],
    y: Float[Array, "classes features"],
    batch: LabelledRows,
    /,
) -> Float[Array, ""]:
    """Return g, the mean loss with ½ Σ_j e^{x_j} ‖y_j‖².

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.zeros((1, 1)), jnp.array([0]))
        >>> float(lower_loss(jnp.zeros(1), jnp.ones((2, 1)), batch))
        1.6931471824645996
    """
    return linear_loss(x, y, batch) + 0.5 * jnp.sum(jnp.exp(x)[None] * y**2)


@dataclass(frozen=True)
class Regularisation:
    """Tune a penalty on the weights of each feature of softmax regression.

    Attributes:
        penalty: initial penalty of every feature.
    """

    penalty: Positive = 0.01

    TEMPLATE: ClassVar[str] = template("regularisation")

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return regularisation(data.split, penalty=self.penalty)

    def pictures(
        self,
        x: Upper,
        data: Callable[[], SplitData],
        shape: tuple[int, int] | None,
    ) -> list[Picture]:
        """Return a picture of the penalty of each feature."""
        return [penalties(x, shape)]


def penalties(
    x: Float[Array | np.ndarray, "features"], shape: tuple[int, int] | None
) -> Picture:
    """Return a picture of e^x, the penalty of each feature.

    Args:
        x: solution of `regularisation`.
        shape: height and width of an image, if features are pixels.

    Example:
        >>> penalties(np.zeros(64), (8, 8)).name
        'penalties'
    """
    values = np.exp(np.asarray(x, np.float64))
    if shape is not None:
        figure = blank(4.2, 3.4)
        from matplotlib.colors import LogNorm

        axes = figure.subplots()
        # A constant penalty would give LogNorm an empty range.
        limits = LogNorm(values.min() / 1.01, values.max() * 1.01)
        image = axes.imshow(values.reshape(shape), cmap="viridis_r", norm=limits)
        axes.set_xticks([])
        axes.set_yticks([])
        figure.colorbar(image, label="penalty (log scale)")
        caption = (
            "Each square is a pixel. Bright pixels have a small penalty; the weights "
            "of dark pixels stay near zero."
        )
        return Picture("penalties", "The penalty of each pixel", caption, figure)
    figure = blank(7, 3)
    axes = figure.subplots()
    order = np.argsort(values)
    if len(order) <= BARS:
        axes.bar([str(feature) for feature in order], values[order])
        axes.tick_params(axis="x", labelrotation=90, labelsize="x-small")
        axes.set_xlabel("feature, from least to most penalised")
    else:
        axes.plot(values[order])
        axes.set_xlabel("features, from least to most penalised")
    axes.set_yscale("log")
    axes.set_ylabel("penalty")
    caption = (
        "Features on the left have a small penalty; the weights of those on the right "
        "stay near zero."
    )
    return Picture("penalties", "The penalty of each feature", caption, figure)
