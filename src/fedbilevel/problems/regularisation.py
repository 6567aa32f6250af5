"""Choosing penalties: one a feature, tuned on validation examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.mathematics.problem import BilevelProblem, Upper
from fedbilevel.mathematics.settings import Positive, check_ranges
from fedbilevel.picture import BARS, Picture, blank
from fedbilevel.problems.classification import linear_accuracy, linear_loss
from fedbilevel.problems.split import LabelledRows, Split, SplitData, deal, tables
from fedbilevel.problems.task import Task


def regularisation(split: Split, *, penalty: float = 1.0) -> Task:
    """Return softmax regression with a penalty e^{x_j} on the weights of feature j.

    For ℓ the cross-entropy of softmax regression with weights y (classes × features),

        g(x, y) = mean over training examples of ℓ(y) + ½ Σ_j e^{x_j} ‖y_j‖²,
        f(x, y) = mean over validation examples of ℓ(y),

    where y_j are the weights of feature j. With two classes this is logistic
    regression. y starts at zero. The metric `accuracy` is that of y on test examples.

    Args:
        split: the examples, and who holds which.
        penalty: every e^{x_j} at the start, above zero.

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
            f"penalty must be above 0, but it is {penalty}: without one the lower loss "
            "is not strongly convex."
        )
    training, validation, test = tables(split)
    features, number = test.features.shape[1], jnp.result_type(test.features)
    return Task(
        BilevelProblem(linear_loss, lower_loss),
        deal(split, training=training, validation=validation),
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
        penalty: of every feature at the start.

    Example:
        >>> Regularisation().penalty
        0.01
    """

    penalty: Positive = 0.01

    TEMPLATE: ClassVar[str] = """rounds = 60

[problem]               # a penalty for each pixel, tuned on validation images
name = "Regularisation"
penalty = 0.01

[data]
name = "digits"

[partition]
devices = 8

[algorithm]
name = "LocalBSGVRM"
learning_rate = 0.5
upper_rate = 20.0
upper_mixing = 2.0
lower_mixing = 2.0
local_steps = 5
batch_size = 16
hypergradient = {name = "NeumannSeries", terms = 10, scale = 0.3}

[evaluation]
every = 5
"""

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
        """Return the penalty of each feature."""
        return [penalties(x, shape)]


def penalties(
    x: Float[Array | np.ndarray, "features"], shape: tuple[int, int] | None
) -> Picture:
    """Return a picture of e^x, the penalty of each feature.

    Args:
        x: what was learnt by `regularisation`.
        shape: height and width of the image whose pixels the features are, if any.

    Example:
        >>> penalties(np.zeros(64), (8, 8)).name
        'penalties'
    """
    learnt = np.exp(np.asarray(x, np.float64))
    if shape is not None:
        figure = blank(4.2, 3.4)
        from matplotlib.colors import LogNorm

        axes = figure.subplots()
        # A penalty that is the same everywhere has no range to be coloured by.
        limits = LogNorm(learnt.min() / 1.01, learnt.max() * 1.01)
        shown = axes.imshow(learnt.reshape(shape), cmap="viridis_r", norm=limits)
        axes.set_xticks([])
        axes.set_yticks([])
        figure.colorbar(shown, label="penalty (log scale)")
        words = (
            "Each square is a pixel. The model may use bright pixels freely; on dark "
            "ones its weights are held near zero."
        )
        return Picture("penalties", "The penalty of each pixel", words, figure)
    figure = blank(7, 3)
    axes = figure.subplots()
    order = np.argsort(learnt)
    if len(order) <= BARS:
        axes.bar([str(feature) for feature in order], learnt[order])
        axes.tick_params(axis="x", labelrotation=90, labelsize="x-small")
        axes.set_xlabel("feature, from least to most penalised")
    else:
        axes.plot(learnt[order])
        axes.set_xlabel("features, from least to most penalised")
    axes.set_yscale("log")
    axes.set_ylabel("penalty")
    words = "The model may use features on the left freely; those on the right hardly."
    return Picture("penalties", "The penalty of each feature", words, figure)
