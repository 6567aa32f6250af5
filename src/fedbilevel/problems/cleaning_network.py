"""Data cleaning with a small network that weighs any number of examples."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.mathematics.settings import Count, Positive, Seed, check_ranges
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


class HintedRows(NamedTuple):
    """Training examples with their losses under a fixed model.

    Attributes:
        examples: features and labels.
        hints: losses under the fixed model; a large loss suggests a wrong label.
    """

    examples: LabelledRows
    hints: Float[Array | np.ndarray, "examples"]


class WeightingNetwork(NamedTuple):
    """σ(output · tanh(slope · hint + shift[label]) + bias), the weight of an example.

    Attributes:
        slope: weight of the hint in each hidden unit.
        shift: bias of each hidden unit, one row per class.
        output: weight of each hidden unit in the output.
        bias: bias of the output.

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
    w_x the `WeightingNetwork` with parameters x, and y_0 a fixed model,

        g(x, y) = mean over training examples i of w_x(ℓ_i(y_0), label_i) ℓ_i(y)
                  + ½ ridge ‖y‖²,
        f(x, y) = mean over validation examples of ℓ(y).

    The size of x does not grow with the number of examples. The network's input is the
    loss under y_0; with the loss under y, g would not be convex in y.

    y starts at zero and all weights at ½. The metric `accuracy` is the accuracy of y on
    test examples; `detection`, if `wrong` is given, is the area under the curve of
    detecting wrong labels by small weights.

    Args:
        split: examples and their devices; training labels may be wrong.
        model: y_0, for example trained on validation examples.
        hidden: number of hidden units.
        ridge: penalty, above zero.
        wrong: mask of the training labels that are known to be wrong.
        seed: seed of the initial slopes.

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
    training, validation, test = tables(split)
    features, number = training.features.shape[1], jnp.result_type(training.features)
    if model.shape != (split.classes, features):
        raise ValueError(
            f"model has shape {model.shape}, expected {(split.classes, features)}. "
            "Pass one row per class and one column per feature."
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
        BilevelProblem(linear_loss, WithRidge(network_loss, ridge)),
        build_devices(split, training=hinted, validation=validation),
        x,
        jnp.zeros((split.classes, features), number),
        metrics,
    )


def network_loss(
    x: WeightingNetwork,
    y: Float[Array, "classes features"],
    batch: HintedRows,
    /,
) -> Float[Array, ""]:
    """Return the mean over a batch of w_x(ℓ_i(y_0), label_i) ℓ_i(y).

    Example:
        >>> import jax.numpy as jnp
        >>> network = WeightingNetwork(
        ...     jnp.ones(1), jnp.zeros((2, 1)), jnp.zeros(1), jnp.array(0.0)
        ... )
        >>> rows = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> batch = HintedRows(rows, jnp.zeros(2))
        >>> float(network_loss(network, jnp.zeros((2, 2)), batch))
        0.3465735912322998
    """
    return jnp.mean(x.weights(batch) * linear_losses(y, batch.examples))


@dataclass(frozen=True)
class CleaningNetwork:
    """Weigh training examples by a small network, to ignore wrong labels.

    The network's input is the loss under a model trained on the validation examples.

    Attributes:
        hidden: number of hidden units of the network.
        ridge: penalty on the model's weights.
        seed: seed of the initial network.
    """

    hidden: Count = 8
    ridge: Positive = 0.01
    seed: Seed = 0

    TEMPLATE: ClassVar[str] = template("cleaning_network")

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return cleaning_network(
            data.split,
            model=_train_model(data.split, self.ridge),
            hidden=self.hidden,
            ridge=self.ridge,
            wrong=data.wrong,
            seed=self.seed,
        )


def _train_model(split: Split, ridge: float) -> Float[np.ndarray, "classes features"]:
    """Return softmax regression trained on the validation examples."""
    # Imported here: it takes longer to import than all other modules together that
    # reading an experiment file needs.
    from scipy.optimize import minimize

    _, validation, _ = tables(split)
    shape = split.classes, validation.features.shape[1]

    @jax.jit
    @jax.value_and_grad
    def loss(y: Float[Array, "numbers"]) -> Float[Array, ""]:
        return WithRidge(linear_loss, ridge)(None, y.reshape(shape), validation)

    def evaluate(
        y: Float[np.ndarray, "numbers"],
    ) -> tuple[float, Float[np.ndarray, "numbers"]]:
        value, gradient = loss(jnp.asarray(y, jnp.result_type(validation.features)))
        return float(value), np.asarray(gradient, np.float64)

    start = np.zeros(shape[0] * shape[1])
    result = minimize(evaluate, start, jac=True, method="L-BFGS-B")
    return np.asarray(result.x).reshape(shape)
