"""Cleaning data: learn which training labels to trust from clean validation labels."""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.problems.classification import (
    check_ridge,
    linear_accuracy,
    linear_loss,
    linear_losses,
    ridge_penalty,
)
from fedbilevel.problems.label_noise import detection
from fedbilevel.problems.split import LabelledRows, Split, deal, tables
from fedbilevel.problems.task import Task


class NumberedRows(NamedTuple):
    """Training examples that know their number among all training examples.

    Attributes:
        examples: features and labels.
        numbers: the places of their weights in x.

    Example:
        >>> import numpy as np
        >>> rows = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> NumberedRows(rows, np.array([5, 7])).numbers
        array([5, 7])
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

    With weights σ(x_i), each ∂Φ/∂x_i would have a factor 1/n; the √n makes up for it,
    as an n times larger upper rate would: ‖∇Φ‖ stays the same where every training
    example is repeated. A server can read examples by their weights, so sites of a
    federation refuse this problem unless their operators allow it: docs/security.md.

    x and y start at zero, all weights at ½. The metric `accuracy` is that of y on test
    examples; `detection`, where `wrong` is given, is the area under the curve of
    finding wrong labels by the smallness of their weights.

    Args:
        split: the examples, and who holds which; its training labels may be wrong.
        ridge: the penalty, above zero.
        wrong: which training labels are wrong, if that is known.

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
    check_ridge(ridge)
    training, validation, test = tables(split)
    count, features = training.features.shape
    number = jnp.result_type(training.features)
    numbers = np.arange(count, dtype=np.int32)
    metrics = {"accuracy": linear_accuracy(test)}
    if wrong is not None:
        # Of x itself: σ keeps its order, but rounds the largest weights to one.
        metrics["detection"] = detection(split, wrong, trust=lambda x: x)
    return Task(
        BilevelProblem(linear_loss, WeightedLoss(ridge)),
        deal(split, training=NumberedRows(training, numbers), validation=validation),
        jnp.zeros(count, number),
        jnp.zeros((split.classes, features), number),
        metrics,
    )


@dataclass(frozen=True)
class WeightedLoss:
    """g, the mean over a batch of σ(√n x_i) ℓ_i(y), with ½ ridge ‖y‖².

    Attributes:
        ridge: the penalty.

    Example:
        >>> import jax.numpy as jnp
        >>> rows = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> batch = NumberedRows(rows, jnp.array([0, 1]))
        >>> float(WeightedLoss(ridge=0.1)(jnp.zeros(2), jnp.zeros((2, 2)), batch))
        0.3465735912322998
    """

    ridge: float

    def __call__(
        self,
        x: Float[Array, "training"],
        y: Float[Array, "classes features"],
        batch: NumberedRows,
        /,
    ) -> Float[Array, ""]:
        """Return the mean loss."""
        weights = jax.nn.sigmoid(sqrt(len(x)) * x[batch.numbers])
        losses = linear_losses(y, batch.examples)
        return jnp.mean(weights * losses) + ridge_penalty(self.ridge, y)
