"""Representation learning: tune a shared backbone on which linear heads are trained."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Positive, SettingError, check_ranges
from fedbilevel.picture import Picture, blank
from fedbilevel.problems.built_in import template
from fedbilevel.problems.classification import WithRidge, accuracy, cross_entropies
from fedbilevel.problems.split import (
    LabelledRows,
    Split,
    SplitData,
    build_devices,
    tables,
)
from fedbilevel.problems.task import Task


class Layer(NamedTuple):
    """A dense layer, tanh(weights · input + bias).

    Attributes:
        weights: weights, one row per unit.
        bias: biases, one number per unit.
    """

    weights: Float[Array, "units inputs"]
    bias: Float[Array, "units"]


Backbone: TypeAlias = tuple[Layer, ...]
"""Layers, from the features to the representation."""


def represent(
    x: Backbone, features: Float[Array | np.ndarray, "examples features"]
) -> Float[Array, "examples units"]:
    """Return the representation of examples: the last layer's output.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Layer(weights=jnp.ones((1, 2)), bias=jnp.zeros(1))
        >>> represent((layer,), jnp.array([[1.0, -1.0]]))
        Array([[0.]], dtype=float32)
    """
    units = jnp.asarray(features)
    for layer in x:
        units = jnp.tanh(units @ layer.weights.T + layer.bias[None])
    return units


def hyper_representation(
    split: Split, *, units: tuple[int, ...] = (64,), ridge: float = 0.01, seed: int = 0
) -> Task:
    """Return softmax regression on a representation learned by the upper problem.

    For r_x(a) the output of dense layers with parameters x on features a, and CE the
    cross-entropy of softmax regression on it with weights y (classes × units),

        g(x, y) = mean over training examples of CE(y r_x(a), label) + ½ ridge ‖y‖²,
        f(x, y) = mean over validation examples of CE(y r_x(a), label).

    Layers start at random: weights normal with variance 1 / inputs, biases at zero. y
    starts at zero. The metric `accuracy` is the accuracy of x and y on test examples.

    Args:
        split: examples and their devices.
        units: number of units of each layer; the last layer is the representation.
        ridge: penalty, above zero.
        seed: seed of the initial layers.

    Raises:
        ValueError: if the split's tables and rows do not fit together.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split, hyper_representation
        >>> table = LabelledRows(np.eye(2), np.array([0, 1]))
        >>> rows = [np.array([0, 1])]
        >>> split = Split(table, table, table, rows, rows, classes=2)
        >>> task = hyper_representation(split, units=(8, 3))
        >>> [layer.weights.shape for layer in task.x], task.y.shape
        ([(8, 2), (3, 8)], (2, 3))
    """
    if not units or min(units) < 1:
        raise ValueError(
            f"units is {units}, expected at least one layer with at least 1 unit each."
        )
    training, validation, test = tables(split)
    number = jnp.result_type(test.features)
    test_features = jnp.asarray(test.features)

    def metric(x: Upper, y: Lower, /) -> float:
        head = jnp.asarray(y, test_features.dtype)
        return accuracy(np.asarray(represent(x, test_features) @ head.T), test.labels)

    return Task(
        BilevelProblem(upper_loss, WithRidge(upper_loss, ridge)),
        build_devices(split, training=training, validation=validation),
        _random_layers((test.features.shape[1], *units), number, seed),
        jnp.zeros((split.classes, units[-1]), number),
        {"accuracy": metric},
    )


def upper_loss(
    x: Backbone, y: Float[Array, "classes units"], batch: LabelledRows, /
) -> Float[Array, ""]:
    """Return f, the mean over a batch of CE(y r_x(a), label).

    Example:
        >>> import jax.numpy as jnp
        >>> batch = LabelledRows(jnp.eye(2), jnp.array([0, 1]))
        >>> layer = Layer(weights=jnp.ones((3, 2)), bias=jnp.zeros(3))
        >>> float(upper_loss((layer,), jnp.zeros((2, 3)), batch))
        0.6931471824645996
    """
    logits = represent(x, batch.features) @ y.T
    return jnp.mean(cross_entropies(logits, batch.labels))


def _random_layers(sizes: tuple[int, ...], number: np.dtype, seed: int) -> Backbone:
    generator = np.random.default_rng(seed)
    return tuple(
        Layer(
            jnp.asarray(
                generator.normal(size=(outputs, inputs)) / np.sqrt(inputs), number
            ),
            jnp.zeros(outputs, number),
        )
        for inputs, outputs in pairwise(sizes)
    )


@dataclass(frozen=True)
class Representation:
    """Learn the hidden layers below a linear classifier.

    Attributes:
        units: number of units of each layer.
        ridge: penalty on the classifier's weights.
    """

    units: tuple[int, ...] = (64,)
    ridge: Positive = 0.01

    TEMPLATE: ClassVar[str] = template("representation")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.units or min(self.units) < 1:
            raise SettingError(
                "units",
                f"{list(self.units)} is invalid; give at least one layer, each of at "
                "least 1 unit.",
            )

    def build(self, data: SplitData) -> Task:
        """Return the problem with its data."""
        return hyper_representation(data.split, units=self.units, ridge=self.ridge)

    def pictures(
        self,
        x: Upper,
        data: Callable[[], SplitData],
        shape: tuple[int, int] | None,
    ) -> list[Picture]:
        """Return the weights of the first layer's units, if features are pixels."""
        return [] if shape is None else [unit_images(x[0].weights, shape)]


SHOWN = 24
"""Number of units in `unit_images`."""


def unit_images(
    weights: Float[Array | np.ndarray, "units pixels"], shape: tuple[int, int]
) -> Picture:
    """Return the weights of the first layer's units as images.

    Args:
        weights: weights of the first layer, one row per unit.
        shape: height and width of an image.

    Example:
        >>> unit_images(np.zeros((3, 64)), (8, 8)).name
        'units'
    """
    shown = np.asarray(weights)[:SHOWN]
    columns = min(8, len(shown))
    rows = -(-len(shown) // columns)
    figure = blank(columns, rows)
    limit = float(np.abs(shown).max()) or 1.0
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.axis("off")
    for panel, row in zip(panels, shown, strict=False):
        panel.imshow(row.reshape(shape), cmap="RdBu", vmin=-limit, vmax=limit)
    caption = (
        "Each image is a unit of the first layer: blue pixels raise its output, red "
        "pixels lower it."
    )
    return Picture("units", "Weights of the first layer", caption, figure)
