"""Choosing penalties: one a feature, tuned on validation examples."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.problems.classification import linear_accuracy, linear_loss
from fedbilevel.problems.split import LabelledRows, Split, deal, tables
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
