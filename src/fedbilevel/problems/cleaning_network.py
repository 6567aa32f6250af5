"""Cleaning data with a small network that weighs examples, however many there are."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.mathematics.settings import Count, Positive, Seed, check_ranges
from fedbilevel.problems.classification import (
    check_ridge,
    linear_accuracy,
    linear_loss,
    linear_losses,
    ridge_penalty,
)
from fedbilevel.problems.label_noise import detection
from fedbilevel.problems.split import LabelledRows, Split, SplitData, deal, tables
from fedbilevel.problems.task import Task


class HintedRows(NamedTuple):
    """Training examples with their losses under a model that was given beforehand.

    Attributes:
        examples: features and labels.
        hints: the losses; large ones hint at wrong labels.

    Example:
        >>> import numpy as np
        >>> rows = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> HintedRows(rows, np.array([0.1, 3.0])).hints.shape
        (2,)
    """

    examples: LabelledRows
    hints: Float[Array | np.ndarray, "examples"]


class WeightingNetwork(NamedTuple):
    """σ(output · tanh(slope · hint + shift[label]) + bias), the weight of an example.

    Attributes:
        slope: of each hidden unit.
        shift: of each hidden unit, one row a class.
        output: of each hidden unit.
        bias: of the output.

    Example:
        >>> import jax.numpy as jnp
        >>> network = WeightingNetwork(
        ...     slope=jnp.ones(1),
        ...     shift=jnp.zeros((2, 1)),
        ...     output=-jnp.ones(1),
        ...     bias=jnp.array(1.0),
        ... )
        >>> rows = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> network.weights(HintedRows(rows, jnp.array([0.0, 9.0]))).round(3)
        Array([0.731, 0.5  ], dtype=float32)
    """

    slope: Float[Array, "hidden"]
    shift: Float[Array, "classes hidden"]
    output: Float[Array, "hidden"]
    bias: Float[Array, ""]

    def weights(self, batch: HintedRows) -> Float[Array, "examples"]:
        """Return the weights of a batch's examples."""
        inner = jnp.outer(batch.hints, self.slope) + self.shift[batch.examples.labels]
        return jax.nn.sigmoid(jnp.tanh(inner) @ self.output + self.bias)


def cleaning_network(
    split: Split,
    *,
    model: Float[Array | np.ndarray, "classes features"],
    hidden: int = 8,
    ridge: float = 0.01,
    wrong: Bool[np.ndarray, "examples"] | None = None,
    seed: int = 0,
) -> Task:
    """Return softmax regression whose training examples a small network weighs.

    For ℓ the cross-entropy of softmax regression with weights y (classes × features),
    w_x the `WeightingNetwork` with parameters x, and y_0 a model given beforehand,

        g(x, y) = mean over training examples i of w_x(ℓ_i(y_0), label_i) ℓ_i(y)
                  + ½ ridge ‖y‖²,
        f(x, y) = mean over validation examples of ℓ(y).

    The size of x does not grow with the number of examples. The network looks at losses
    under y_0 and not under y, which would take the convexity in y away.

    y starts at zero and all weights at ½. The metric `accuracy` is that of y on test
    examples; `detection`, where `wrong` is given, is the area under the curve of
    finding wrong labels by the smallness of their weights.

    Args:
        split: the examples, and who holds which; its training labels may be wrong.
        model: y_0, such as one trained on validation examples.
        hidden: the number of hidden units.
        ridge: the penalty, above zero.
        wrong: which training labels are wrong, if that is known.
        seed: of the slopes at the start.

    Raises:
        ValueError: if the arguments do not fit together.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split, cleaning_network
        >>> table = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> rows = [np.array([0, 1])]
        >>> split = Split(table, table, table, rows, rows, classes=2)
        >>> task = cleaning_network(split, model=np.eye(2))
        >>> task.x.shift.shape
        (2, 8)
    """
    check_ridge(ridge)
    training, validation, test = tables(split)
    features, number = training.features.shape[1], jnp.result_type(training.features)
    if model.shape != (split.classes, features):
        raise ValueError(
            f"model has shape {model.shape}, but there are {split.classes} classes and "
            f"{features} features; give one row a class."
        )
    training = jax.tree.map(jnp.asarray, training)
    hints = linear_losses(jnp.asarray(model, number), training)
    hinted = HintedRows(training, hints)
    metrics = {"accuracy": linear_accuracy(test)}
    if wrong is not None:
        metrics["detection"] = detection(split, wrong, lambda x: x.weights(hinted))
    slope = np.random.default_rng(seed).normal(size=hidden)
    x = WeightingNetwork(
        jnp.asarray(slope, number),
        jnp.zeros((split.classes, hidden), number),
        jnp.zeros(hidden, number),
        jnp.zeros((), number),
    )
    return Task(
        BilevelProblem(linear_loss, NetworkLoss(ridge)),
        deal(split, training=hinted, validation=validation),
        x,
        jnp.zeros((split.classes, features), number),
        metrics,
    )


@dataclass(frozen=True)
class NetworkLoss:
    """g, the mean over a batch of w_x(ℓ_i(y_0), label_i) ℓ_i(y), with ½ ridge ‖y‖².

    Attributes:
        ridge: the penalty.

    Example:
        >>> import jax.numpy as jnp
        >>> network = WeightingNetwork(
        ...     jnp.ones(1), jnp.zeros((2, 1)), jnp.zeros(1), jnp.array(0.0)
        ... )
        >>> rows = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> batch = HintedRows(rows, jnp.zeros(2))
        >>> float(NetworkLoss(ridge=0.1)(network, jnp.zeros((2, 2)), batch))
        0.3465735912322998
    """

    ridge: float

    def __call__(
        self,
        x: WeightingNetwork,
        y: Float[Array, "classes features"],
        batch: HintedRows,
        /,
    ) -> Float[Array, ""]:
        """Return the mean loss."""
        losses = x.weights(batch) * linear_losses(y, batch.examples)
        return jnp.mean(losses) + ridge_penalty(self.ridge, y)


@dataclass(frozen=True)
class CleaningNetwork:
    """Learn which training examples to trust, by a small network that weighs them.

    The model whose losses it looks at is trained on the validation examples.

    Attributes:
        hidden: units of the network.
        ridge: the penalty on the model's weights.
        seed: of the network at the start.

    Example:
        >>> CleaningNetwork().hidden
        8
    """

    hidden: Count = 8
    ridge: Positive = 0.01
    seed: Seed = 0

    TEMPLATE: ClassVar[str] = """rounds = 150

[problem]               # which training labels can be trusted?
name = "CleaningNetwork"

[data]
name = "digits"
label_noise = 0.4             # this share of them is drawn anew at random

[partition]
devices = 8

[algorithm]
name = "auto"

[evaluation]
every = 10
"""

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return cleaning_network(
            data.split,
            model=_trained(data.split, self.ridge),
            hidden=self.hidden,
            ridge=self.ridge,
            wrong=data.wrong,
            seed=self.seed,
        )


def _trained(split: Split, ridge: float) -> Float[np.ndarray, "classes features"]:
    """Return softmax regression trained on the validation examples."""
    # It takes longer to import than all else that reading a file imports.
    from scipy.optimize import minimize

    _, validation, _ = tables(split)
    shape = split.classes, validation.features.shape[1]

    @jax.jit
    @jax.value_and_grad
    def loss(y: Float[Array, "numbers"]) -> Float[Array, ""]:
        model = y.reshape(shape)
        return linear_loss(None, model, validation) + ridge_penalty(ridge, model)

    def of(
        y: Float[np.ndarray, "numbers"],
    ) -> tuple[float, Float[np.ndarray, "numbers"]]:
        value, slope = loss(jnp.asarray(y, jnp.result_type(validation.features)))
        return float(value), np.asarray(slope, np.float64)

    found = minimize(of, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(found.x).reshape(shape)
