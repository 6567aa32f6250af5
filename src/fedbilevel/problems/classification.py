"""The linear model of the ready-made problems, its losses and metrics."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.mathematics.problem import Batch, Loss, Lower, Upper
from fedbilevel.problems.split import LabelledRows
from fedbilevel.problems.task import TaskMetric


def linear_losses(
    y: Float[Array, "classes features"], batch: LabelledRows
) -> Float[Array, "examples"]:
    """Return ℓ(y) of each example: the cross-entropy of softmax regression.

    y has shape (classes, features): with its transpose, rounds took twice as long.

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> linear_losses(jnp.zeros((2, 2)), batch)
        Array([0.6931472, 0.6931472], dtype=float32)
    """
    return cross_entropies(jnp.asarray(batch.features) @ y.T, batch.labels)


def linear_loss(
    x: Upper, y: Float[Array, "classes features"], batch: LabelledRows, /
) -> Float[Array, ""]:
    """Return the mean of ℓ(y): an upper loss that depends on x only through y.

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> float(linear_loss(None, jnp.zeros((2, 2)), batch))
        0.6931471824645996
    """
    return jnp.mean(linear_losses(y, batch))


def cross_entropies(
    logits: Float[Array, "examples classes"],
    labels: Int[Array | np.ndarray, "examples"],
) -> Float[Array, "examples"]:
    """Return −log softmax(logits)[label] of each example.

    Example:
        >>> import jax.numpy as jnp
        >>> cross_entropies(jnp.zeros((1, 2)), jnp.array([1]))
        Array([0.6931472], dtype=float32)
    """
    label_logits = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - label_logits


@dataclass(frozen=True)
class WithRidge:
    """A convex loss with ½ ridge ‖y‖², which makes it strongly convex in y.

    Attributes:
        loss: the mean over a batch, convex in y.
        ridge: the penalty.

    Raises:
        ValueError: if the penalty is not above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> float(WithRidge(linear_loss, ridge=0.5)(None, jnp.ones((2, 2)), batch))
        1.6931471824645996
        >>> WithRidge(linear_loss, ridge=0.0)
        Traceback (most recent call last):
        ...
        ValueError: ridge is 0.0, expected a number above 0: without a penalty the
        lower loss is not strongly convex.
    """

    loss: Loss
    ridge: float

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ValueError(
                f"ridge is {self.ridge}, expected a number above 0: without a penalty "
                "the lower loss is not strongly convex."
            )

    def __call__(
        self, x: Upper, y: Float[Array, "classes features"], batch: Batch, /
    ) -> Float[Array, ""]:
        """Return the mean loss with the penalty."""
        return self.loss(x, y, batch) + 0.5 * self.ridge * jnp.sum(y**2)


def linear_accuracy(test: LabelledRows) -> TaskMetric:
    """Return a metric: the accuracy of the linear model y on test examples.

    Example:
        >>> import numpy as np
        >>> metric = linear_accuracy(LabelledRows(np.eye(2), np.array([0, 1])))
        >>> metric(None, np.eye(2))
        1.0
    """

    def metric(x: Upper, y: Lower, /) -> float:
        return accuracy(test.features @ np.asarray(y).T, test.labels)

    return metric


def accuracy(
    logits: Float[Array | np.ndarray, "examples classes"],
    labels: Int[Array | np.ndarray, "examples"],
) -> float:
    """Return the share of examples whose label has the largest logit.

    Example:
        >>> import numpy as np
        >>> accuracy(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
        0.5
    """
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def balanced_accuracy(
    logits: Float[Array | np.ndarray, "examples classes"],
    labels: Int[Array | np.ndarray, "examples"],
) -> float:
    """Return the mean over classes of the accuracy within each class.

    Classes without an example are excluded.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[1.0, 0.0]] * 4)
        >>> balanced_accuracy(logits, np.array([0, 0, 0, 1]))
        0.5
    """
    correct = np.argmax(logits, axis=1) == labels
    counts = np.bincount(labels)
    present = counts > 0
    return float(np.mean(np.bincount(labels, correct)[present] / counts[present]))


def area_under_curve(
    scores: Float[np.ndarray, "examples"], positive: Bool[np.ndarray, "examples"]
) -> float:
    """Return the area under the receiver operating characteristic, from ranks.

    It is the probability that a positive example scores above a negative one; ties
    count half.

    Example:
        >>> import numpy as np
        >>> area_under_curve(np.array([0.1, 0.4, 0.3]), np.array([False, True, True]))
        1.0
    """
    # Imported here: it takes as long to import as JAX, and few programs need it.
    from scipy.stats import rankdata

    count = np.count_nonzero(positive)
    above = np.sum(rankdata(scores)[positive]) - count * (count + 1) / 2
    return float(above / (count * (len(scores) - count)))
