"""The effect of tuning on real images, by steps along the exact hypergradient."""

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedbilevel.metrics import newton_reference
from fedbilevel.problems import (
    LabelledRows,
    Split,
    cleaning_network,
    hyper_cleaning,
    long_tail,
    loss_tuning,
    redraw_labels,
)
from tests.algorithms.table import at_night

pytestmark = pytest.mark.slow


def split(training_labels=None, training_rows=None) -> Split:
    """Return 300 training, 300 validation and 600 test images on four devices."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))[:1200]
    images, labels = pixels[order] / 16, digits[order]
    tables = [
        LabelledRows(images[begin:end], labels[begin:end])
        for begin, end in ((0, 300), (300, 600), (600, 1200))
    ]
    if training_labels is not None:
        tables[0] = tables[0]._replace(labels=training_labels)
    rows = np.arange(300) if training_rows is None else training_rows
    return Split(
        training=tables[0],
        validation=tables[1],
        test=tables[2],
        training_rows=np.array_split(rows, 4),
        validation_rows=np.array_split(np.arange(300), 4),
        classes=10,
    )


def tuned(task, rate, steps=4):
    """Return the initial y*(x), and (x, y*(x)) after steps along −∇Φ."""
    reference = newton_reference(task.problem, task.devices)
    x = jax.tree.map(np.asarray, task.x)
    first = y = reference.lower_solution(x, task.y)
    for _ in range(steps):
        gradient = reference.hypergradient(x, y)
        x = jax.tree.map(lambda a, b: a - rate * b, x, gradient)
        y = reference.lower_solution(x, y)
    return first, x, y


def validation_model(whole: Split) -> np.ndarray:
    """Return ridge regression on the classes of the validation images."""
    features, labels = whole.validation.features, np.asarray(whole.validation.labels)
    gram = features.T @ features + np.eye(64)
    return 5 * np.linalg.solve(gram, features.T @ np.eye(10)[labels]).T


@pytest.mark.parametrize("name", ["example weights", *at_night("network")])
def test_cleaning_finds_wrong_labels_and_raises_the_accuracy(name):
    clean = split()
    noisy = redraw_labels(np.asarray(clean.training.labels), share=0.5, classes=10)
    dirty = split(training_labels=noisy.labels)
    if name == "example weights":
        task, rate = hyper_cleaning(dirty, wrong=noisy.wrong), 1.0
    else:
        model = validation_model(clean)
        task, rate = cleaning_network(dirty, model=model, wrong=noisy.wrong), 3.0
    first, x, y = tuned(task, rate)
    assert task.metrics["detection"](task.x, first) == 0.5
    assert task.metrics["detection"](x, y) > 0.9
    assert task.metrics["accuracy"](x, y) > task.metrics["accuracy"](x, first) + 0.03


@pytest.mark.nightly
def test_tuning_the_loss_raises_the_balanced_accuracy():
    labels = np.asarray(split().training.labels)
    rows = np.random.default_rng(1).permutation(long_tail(labels, 10, ratio=20.0))
    task = loss_tuning(split(training_rows=rows))
    first, x, y = tuned(task, rate=3.0)
    metric = task.metrics["balanced_accuracy"]
    assert metric(x, y) > metric(x, first) + 0.03
    # The first classes are the most frequent; training must favour them.
    assert x.shift[:3].min() > x.shift[-3:].max()


@pytest.mark.nightly
def test_repeating_every_training_example_keeps_the_norm_of_the_hypergradient():
    once = split()
    training = once.training
    twice = once._replace(
        training=LabelledRows(
            np.concatenate([training.features] * 2),
            np.concatenate([training.labels] * 2),
        ),
        training_rows=[
            np.concatenate([rows, rows + 300]) for rows in once.training_rows
        ],
    )
    norms = []
    for each in (once, twice):
        task = hyper_cleaning(each)
        reference = newton_reference(task.problem, task.devices)
        norms.append(np.linalg.norm(reference.hypergradient(task.x, task.y)))
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-6)
