"""Loss tuning under class imbalance, for accuracy on rare classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Positive, check_ranges
from fedbilevel.picture import Picture, blank
from fedbilevel.problems.built_in import template
from fedbilevel.problems.classification import (
    WithRidge,
    balanced_accuracy,
    cross_entropies,
    linear_losses,
)
from fedbilevel.problems.imbalance import class_weights
from fedbilevel.problems.split import (
    LabelledRows,
    Split,
    SplitData,
    build_devices,
    tables,
)
from fedbilevel.problems.task import Task


class LossParameters(NamedTuple):
    """Parameters of a training loss on σ(scale) ⊙ logits + shift.

    Attributes:
        scale: one number per class.
        shift: one number per class.
    """

    scale: Float[Array, "classes"]
    shift: Float[Array, "classes"]


def loss_tuning(
    split: Split, *, ridge: float = 0.01, weights: ArrayLike | None = None
) -> Task:
    """Return softmax regression with a training loss tuned for each class.

    For logits z = y a of features a and weights y (classes × features), CE the
    cross-entropy, and x = (scale, shift),

        g(x, y) = mean over training examples of CE(σ(scale) ⊙ z + shift, label)
                  + ½ ridge ‖y‖²,
        f(x, y) = mean over validation examples of CE(z, label) / (C p_label),

    where p_c is the share of class c among a device's validation examples, in the
    weighted mean over devices. Every class thus has weight 1/C in f.

    x and y start at zero. The metric `balanced_accuracy` is the mean over classes of
    the accuracy of y on a class's test examples.

    Args:
        split: examples and their devices.
        ridge: penalty, above zero.
        weights: weights of the devices, as passed to `run`.

    Raises:
        ValueError: if the split's tables and rows do not fit together, or a class has
            no validation example.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split, loss_tuning
        >>> table = LabelledRows(np.eye(4), np.array([0, 0, 0, 1]))
        >>> rows = [np.arange(4)]
        >>> task = loss_tuning(Split(table, table, table, rows, rows, classes=2))
        >>> task.problem.upper_loss.class_weights  # 1 / (2 · ¾) and 1 / (2 · ¼)
        (0.6666666666666666, 2.0)
    """
    training, validation, test = tables(split)
    number = jnp.result_type(test.features)
    devices = build_devices(split, training=training, validation=validation)
    labels = np.asarray(validation.labels)
    parts = [labels[rows] for rows in split.validation_rows]
    balance = class_weights(parts, split.classes, weights)

    def metric(x: Upper, y: Lower, /) -> float:
        return balanced_accuracy(test.features @ np.asarray(y).T, test.labels)

    return Task(
        BilevelProblem(BalancedLoss(balance), WithRidge(tuned_loss, ridge)),
        devices,
        LossParameters(
            jnp.zeros(split.classes, number), jnp.zeros(split.classes, number)
        ),
        jnp.zeros((split.classes, test.features.shape[1]), number),
        {"balanced_accuracy": metric},
    )


@dataclass(frozen=True)
class BalancedLoss:
    """f, the mean over a batch of each example's loss times the weight of its class.

    Attributes:
        class_weights: 1 / (C p_c) of each class c.

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> float(BalancedLoss((0.5, 1.5))(None, jnp.zeros((2, 2)), batch))
        0.6931471824645996
    """

    class_weights: tuple[float, ...]

    def __call__(
        self, x: Upper, y: Float[Array, "classes features"], batch: LabelledRows, /
    ) -> Float[Array, ""]:
        """Return the mean loss."""
        weights = jnp.asarray(self.class_weights, y.dtype)[batch.labels]
        return jnp.mean(weights * linear_losses(y, batch))


def tuned_loss(
    x: LossParameters,
    y: Float[Array, "classes features"],
    batch: LabelledRows,
    /,
) -> Float[Array, ""]:
    """Return the mean over a batch of CE(σ(scale) ⊙ z + shift).

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> x = LossParameters(scale=jnp.zeros(2), shift=jnp.zeros(2))
        >>> float(tuned_loss(x, jnp.zeros((2, 2)), batch))
        0.6931471824645996
    """
    logits = jax.nn.sigmoid(x.scale)[None] * (batch.features @ y.T) + x.shift[None]
    return jnp.mean(cross_entropies(logits, batch.labels))


@dataclass(frozen=True)
class LossTuning:
    """Tune the training loss of each class, for accuracy on rare classes.

    Attributes:
        ridge: penalty on the model's weights.
    """

    ridge: Positive = 0.01

    TEMPLATE: ClassVar[str] = template("loss_tuning")

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return loss_tuning(data.split, ridge=self.ridge, weights=data.weights)

    def pictures(
        self,
        x: Upper,
        data: Callable[[], SplitData],
        shape: tuple[int, int] | None,
    ) -> list[Picture]:
        """Return a picture of the scale and shift of each class."""
        split = data().split
        counts = np.bincount(split.training.labels, minlength=split.classes)
        return [class_picture(x, counts)]


def class_picture(x: LossParameters, counts: Int[np.ndarray, "classes"]) -> Picture:
    """Return a picture of each class's number of examples, scale and shift.

    Args:
        x: solution of `loss_tuning`.
        counts: number of training examples of each class.

    Example:
        >>> x = LossParameters(np.zeros(3), np.zeros(3))
        >>> class_picture(x, np.array([100, 10, 1])).name
        'classes'
    """
    from scipy.special import expit

    figure = blank(9, 2.8)
    classes = [str(number) for number in range(len(counts))]
    panels = {
        "training examples": (counts, "tab:gray"),
        "scale of the score, σ(scale)": (expit(np.asarray(x.scale)), "tab:blue"),
        "shift of the score": (np.asarray(x.shift), "tab:green"),
    }
    for axes, (title, (values, colour)) in zip(
        figure.subplots(1, 3), panels.items(), strict=True
    ):
        axes.bar(classes, values, color=colour)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("class")
    caption = (
        "The training loss scales and shifts the score of each class. Where the shift "
        "is low, the model must raise the score of the class: this favours rare "
        "classes."
    )
    return Picture("classes", "The training loss of each class", caption, figure)
