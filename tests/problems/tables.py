"""Small splits, and every task with a plain-NumPy transcription of its losses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbilevel.problems import (
    LabelledRows,
    LossParameters,
    Split,
    Task,
    WeightingNetwork,
    cleaning_network,
    hyper_cleaning,
    hyper_representation,
    loss_tuning,
    quadratic_task,
    random_quadratic,
    regularisation,
)

FEATURES, CLASSES, RIDGE = 4, 3, 0.2
TRAINING_ROWS = [np.array([6, 1, 2]), np.array([0, 3, 4, 5])]
VALIDATION_ROWS = [np.array([0, 3, 4, 2]), np.array([1])]


def table(count: int, seed: int) -> LabelledRows:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, FEATURES))
    return LabelledRows(features, np.arange(count) % CLASSES)


def split() -> Split:
    """Return ragged devices with unordered rows."""
    return Split(
        training=table(7, 0),
        validation=table(5, 1),
        test=table(9, 2),
        training_rows=TRAINING_ROWS,
        validation_rows=VALIDATION_ROWS,
        classes=CLASSES,
    )


MODEL = np.random.default_rng(3).normal(size=(CLASSES, FEATURES))


class Case(NamedTuple):
    """A task, a point, and the task's losses of one example in NumPy."""

    task: Task
    x: Any
    y: np.ndarray
    upper: Callable[[Any, np.ndarray, Any], float]
    lower: Callable[[Any, np.ndarray, Any], float]
    convexity: float


def held(task: Task, device: int) -> tuple[Any, Any]:
    """Return all upper and all lower examples of a device."""

    def rows(stored):
        begin, size = int(stored.offset[0]), int(stored.size[0])
        return jax.tree.map(lambda leaf: leaf[begin : begin + size], stored.arrays)

    cohort = task.devices.cohort(np.array([device]))
    return rows(cohort.upper), rows(cohort.lower)


def transcribed(loss, x, y, batch) -> float:
    """Return the mean of a loss over the examples of a batch, in a Python loop."""
    count = len(jax.tree.leaves(batch)[0])
    examples = [
        jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), batch) for i in range(count)
    ]
    return float(np.mean([loss(x, y, example) for example in examples]))


def cross_entropy(logits, label):
    return np.log(sum(np.exp(z) for z in logits)) - logits[label]


def logistic(z):
    return 1 / (1 + np.exp(-z))


def linear(x, y, example):
    return cross_entropy(y @ example.features, example.labels)


def penalty(y):
    return 0.5 * RIDGE * sum(w**2 for w in y.ravel())


def quadratic_case() -> Case:
    quadratic = random_quadratic(devices=2, heterogeneity=0.5, ridge=RIDGE)
    task = quadratic_task(quadratic, examples=3, noise=0.7, curvature_noise=0.3)

    def upper(x, y, example):
        distance = y - example.target
        loss = 0.5 * distance @ distance + 0.5 * RIDGE * x @ x
        return loss + example.slope @ y + example.shift @ x

    def lower(x, y, example):
        pull = example.coupling @ x + example.offset
        return 0.5 * y @ example.matrix @ y - y @ pull

    return _case(task, upper, lower, convexity=0.0)


def regularisation_case() -> Case:
    def lower(x, y, example):
        pairs = [(j, c) for j in range(FEATURES) for c in range(CLASSES)]
        penalties = sum(np.exp(x[j]) * y[c, j] ** 2 for j, c in pairs)
        return linear(x, y, example) + 0.5 * penalties

    case = _case(regularisation(split()), linear, lower, convexity=0.0)
    return case._replace(convexity=float(np.exp(case.x).min()))


def hyper_cleaning_case() -> Case:
    wrong = np.arange(7) % 2 == 0
    task = hyper_cleaning(split(), ridge=RIDGE, wrong=wrong)

    def lower(x, y, example):
        weight = logistic(np.sqrt(7) * x[example.numbers])
        return weight * linear(x, y, example.examples) + penalty(y)

    return _case(task, linear, lower, RIDGE)


def cleaning_network_case() -> Case:
    wrong = np.arange(7) % 2 == 0
    task = cleaning_network(split(), model=MODEL, hidden=2, ridge=RIDGE, wrong=wrong)

    def lower(x: WeightingNetwork, y, example):
        hint = linear(x, MODEL, example.examples)
        inner = x.bias
        for unit in range(2):
            shift = x.shift[example.examples.labels, unit]
            inner = inner + x.output[unit] * np.tanh(x.slope[unit] * hint + shift)
        return logistic(inner) * linear(x, y, example.examples) + penalty(y)

    return _case(task, linear, lower, RIDGE)


def loss_tuning_case() -> Case:
    # The devices' validation labels are 0, 0, 1, 2 and 1: shares ½, ¼, ¼ and 0, 1, 0.
    shares = [0.25, 0.625, 0.125]

    def upper(x, y, example):
        return linear(x, y, example) / (CLASSES * shares[example.labels])

    def lower(x: LossParameters, y, example):
        logits = y @ example.features
        tuned = [logistic(x.scale[c]) * logits[c] + x.shift[c] for c in range(CLASSES)]
        return cross_entropy(tuned, example.labels) + penalty(y)

    return _case(loss_tuning(split(), ridge=RIDGE), upper, lower, RIDGE)


def hyper_representation_case() -> Case:
    def upper(x, y, example):
        first, second = x
        units = np.tanh(first.weights @ example.features + first.bias)
        units = np.tanh(second.weights @ units + second.bias)
        return cross_entropy(y @ units, example.labels)

    def lower(x, y, example):
        return upper(x, y, example) + penalty(y)

    task = hyper_representation(split(), units=(3, 2), ridge=RIDGE)
    return _case(task, upper, lower, RIDGE)


def _case(task: Task, upper, lower, convexity: float) -> Case:
    generator = np.random.default_rng(4)

    def around(leaf):
        return np.asarray(leaf) + 0.5 * generator.normal(size=leaf.shape)

    x, y = jax.tree.map(around, (task.x, task.y))
    return Case(task, x, y, upper, lower, convexity)


CASES: dict[str, Callable[[], Case]] = {
    "quadratic": quadratic_case,
    "regularisation": regularisation_case,
    "hyper_cleaning": hyper_cleaning_case,
    "cleaning_network": cleaning_network_case,
    "loss_tuning": loss_tuning_case,
    "hyper_representation": hyper_representation_case,
}
