"""Data cleaning: weigh training labels, tuned on clean validation labels."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.mathematics.problem import BilevelProblem, Upper
from fedbilevel.mathematics.settings import Positive, check_ranges
from fedbilevel.picture import Picture, blank
from fedbilevel.problems.built_in import template
from fedbilevel.problems.classification import (
    WithRidge,
    linear_accuracy,
    linear_loss,
    linear_losses,
)
from fedbilevel.problems.label_noise import detection
from fedbilevel.problems.split import (
    LabelledRows,
    Split,
    SplitData,
    build_devices,
    tables,
)
from fedbilevel.problems.task import Task


class NumberedRows(NamedTuple):
    """Training examples with their numbers among all training examples.

    Attributes:
        examples: features and labels.
        numbers: indices of the examples' weights in x.
    """

    examples: LabelledRows
    numbers: Int[Array | np.ndarray, "examples"]


def hyper_cleaning(
    split: Split,
    *,
    ridge: float = 0.01,
    wrong: Bool[np.ndarray, "examples"] | None = None,
) -> Task:
    """Return softmax regression with a weight for each training example.

    For ℓ the cross-entropy of softmax regression with weights y (classes × features)
    and n the number of training examples,

        g(x, y) = mean over training examples i of σ(√n x_i) ℓ_i(y) + ½ ridge ‖y‖²,
        f(x, y) = mean over validation examples of ℓ(y).

    With weights σ(x_i), each ∂Φ/∂x_i would have a factor 1/n. The √n removes it, as an
    n times larger upper rate would: ‖∇Φ‖ does not change if every training example is
    repeated. A server can infer examples from their weights, so sites of a federation
    refuse this problem unless their operators allow it: docs/security.md.

    x and y start at zero, all weights at ½. The metric `accuracy` is the accuracy of y
    on test examples; `detection`, if `wrong` is given, is the area under the curve of
    detecting wrong labels by small weights.

    Args:
        split: examples and their devices; training labels may be wrong.
        ridge: penalty, above zero.
        wrong: mask of the training labels that are known to be wrong.

    Raises:
        ValueError: if the arguments do not fit together.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split, hyper_cleaning
        >>> table = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> rows = [np.array([0, 1])]
        >>> split = Split(table, table, table, rows, rows, classes=2)
        >>> task = hyper_cleaning(split, wrong=np.array([True, False]))
        >>> task.metrics["detection"](np.array([-1.0, 1.0]), task.y)
        1.0
    """
    training, validation, test = tables(split)
    count, features = training.features.shape
    number = jnp.result_type(training.features)
    numbers = np.arange(count, dtype=np.int32)
    metrics = {"accuracy": linear_accuracy(test)}
    if wrong is not None:
        # The metric uses x: σ has the same order, but rounds large weights to 1.
        metrics["detection"] = detection(split, wrong, trust=lambda x: x)
    return Task(
        BilevelProblem(linear_loss, WithRidge(weighted_loss, ridge)),
        build_devices(
            split, training=NumberedRows(training, numbers), validation=validation
        ),
        jnp.zeros(count, number),
        jnp.zeros((split.classes, features), number),
        metrics,
    )


def weighted_loss(
    x: Float[Array, "training"],
    y: Float[Array, "classes features"],
    batch: NumberedRows,
    /,
) -> Float[Array, ""]:
    """Return the mean over a batch of σ(√n x_i) ℓ_i(y).

    Example:
        >>> import jax.numpy as jnp
        >>> rows = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> batch = NumberedRows(rows, jnp.array([0, 1]))
        >>> float(weighted_loss(jnp.zeros(2), jnp.zeros((2, 2)), batch))
        0.3465735912322998
    """
    weights = jax.nn.sigmoid(sqrt(len(x)) * x[batch.numbers])
    return jnp.mean(weights * linear_losses(y, batch.examples))


@dataclass(frozen=True)
class Cleaning:
    """Tune a weight for each training example, to ignore wrong labels.

    Attributes:
        ridge: penalty on the model's weights.
    """

    ridge: Positive = 0.01

    TEMPLATE: ClassVar[str] = template("cleaning")

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return hyper_cleaning(data.split, ridge=self.ridge, wrong=data.wrong)

    def pictures(
        self,
        x: Upper,
        data: Callable[[], SplitData],
        shape: tuple[int, int] | None,
    ) -> list[Picture]:
        """Return a histogram of all weights and, for images, the extreme examples."""
        split, wrong, *_ = data()
        histogram = trust_histogram(x, wrong)
        if shape is None:
            return [histogram]
        features = np.asarray(split.training.features)
        labels = np.asarray(split.training.labels)
        return [trusted_images(x, features, labels, wrong, shape), histogram]


SHOWN = 10
"""Number of images in a row of `trusted_images`."""


def trust(
    x: Float[Array | np.ndarray, "examples"],
) -> Float[np.ndarray, "examples"]:
    """Return σ(√n x_i), the weights of `hyper_cleaning`.

    Example:
        >>> trust(np.zeros(2))
        array([0.5, 0.5])
    """
    from scipy.special import expit

    weights: Float[np.ndarray, "examples"] = expit(
        sqrt(len(x)) * np.asarray(x, np.float64)
    )
    return weights


def trusted_images(
    x: Float[Array | np.ndarray, "examples"],
    features: Float[np.ndarray, "examples features"],
    labels: Int[np.ndarray, "examples"],
    wrong: Bool[np.ndarray, "examples"] | None,
    shape: tuple[int, int],
) -> Picture:
    """Return the most and the least trusted training images with their labels.

    Args:
        x: solution of `hyper_cleaning`.
        features: pixels of each training example.
        labels: labels used in training.
        wrong: mask of the labels that are known to be wrong.
        shape: height and width of an image.

    Example:
        >>> images, labels = np.zeros((20, 64)), np.zeros(20, np.int32)
        >>> trusted_images(np.arange(20.0), images, labels, None, (8, 8)).name
        'trusted'
    """
    order = np.argsort(np.asarray(x))
    shown = min(SHOWN, len(order) // 2)
    rows = {"largest\nweight": order[::-1][:shown], "smallest\nweight": order[:shown]}
    figure = blank(9, 2.6)
    grid = figure.subplots(2, shown, squeeze=False)
    for panels, (label, examples) in zip(grid, rows.items(), strict=True):
        for panel, example in zip(panels, examples, strict=True):
            panel.imshow(features[example].reshape(shape), cmap="gray_r")
            panel.set_xticks([])
            panel.set_yticks([])
            corrupted = wrong is not None and wrong[example]
            panel.set_title(
                f"“{labels[example]}”",
                color="tab:red" if corrupted else "black",
                fontsize="medium",
            )
        panels[0].set_ylabel(label, rotation=0, ha="right", va="center")
    caption = "Above each image is its label in training."
    if wrong is not None:
        caption += " Red labels are wrong; the run did not have this information."
    return Picture(
        "trusted", "Examples of largest and smallest weight", caption, figure
    )


def trust_histogram(
    x: Float[Array | np.ndarray, "examples"],
    wrong: Bool[np.ndarray, "examples"] | None,
) -> Picture:
    """Return a histogram of the examples' weights.

    Args:
        x: solution of `hyper_cleaning`.
        wrong: mask of the labels that are known to be wrong.

    Example:
        >>> trust_histogram(np.arange(20.0), np.arange(20) < 5).name
        'trust'
    """
    weights = trust(x)
    figure = blank(6, 3)
    axes = figure.subplots()
    bins = np.linspace(0, 1, 31).tolist()
    if wrong is None:
        axes.hist(weights, bins=bins)
        caption = "Training almost ignores the examples on the left."
    else:
        axes.hist(
            [weights[~wrong], weights[wrong]],
            bins=bins,
            stacked=True,
            color=["tab:blue", "tab:red"],
            label=["label is right", "label is wrong"],
        )
        axes.legend()
        caption = (
            "Training almost ignores the examples on the left. Wrong labels should be "
            "there; the run did not have this information."
        )
    axes.set_xlabel("weight of an example in training")
    axes.set_ylabel("examples")
    return Picture("trust", "Weights of the training examples", caption, figure)
