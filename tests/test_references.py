"""Tests of the references of the comparison on real tasks."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import references
from benchmarks.fitting import softmax, softmax_losses
from benchmarks.task_list import Case, Partition
from fedbilevel.problems import (
    LabelledRows,
    Split,
    cleaning_network,
    redraw_labels,
)


def blobs(count, classes=3, seed=0):
    """Return classes that a linear model can separate."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    noise = 0.3 * generator.standard_normal((count, classes))
    return LabelledRows(np.eye(classes)[labels] + noise, labels)


def test_a_weight_counts_as_so_many_copies():
    table = blobs(30)
    copies = np.random.default_rng(1).integers(1, 4, 30)
    rows = np.repeat(np.arange(30), copies)
    repeated = LabelledRows(table.features[rows], table.labels[rows])
    weights = copies / copies.sum()
    weighted = softmax(jnp.zeros((3, 3)), [table], 0.1, weights)
    again = softmax(jnp.zeros((3, 3)), [repeated], 0.1)
    np.testing.assert_allclose(weighted, again, atol=1e-4)
    assert np.abs(weighted - softmax(jnp.zeros((3, 3)), [table], 0.1)).max() > 1e-2


def test_a_minimiser_has_no_gradient_left():
    table, ridge = blobs(50), 0.05
    y = np.asarray(softmax(jnp.zeros((3, 3)), [table], ridge))
    scores = table.features @ y.T
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    gradient = (shares - np.eye(3)[table.labels]).T @ table.features / 50 + ridge * y
    assert np.abs(gradient).max() < 1e-4
    expected = -np.log(shares[np.arange(50), table.labels])
    np.testing.assert_allclose(softmax_losses(y, table), expected, rtol=1e-6)


def test_balanced_weights_have_equal_sums_for_all_classes():
    table = LabelledRows(np.zeros((7, 1)), np.array([0, 0, 0, 0, 1, 1, 2]))
    weights = references._balanced_weights(table, 3)
    sums = [weights[table.labels == label].sum() for label in range(3)]
    np.testing.assert_allclose(sums, 1 / 3, rtol=1e-6)


@pytest.fixture
def case():
    """Three blobs with four tenths of wrong training labels."""
    training, validation, test, selection = (
        blobs(n, seed=seed) for seed, n in enumerate((600, 40, 500, 40))
    )
    redrawn = redraw_labels(training.labels, 0.6, 3, seed=1)
    split = Split(
        LabelledRows(training.features, redrawn.labels),
        validation,
        test,
        list(np.arange(600).reshape(2, 300)),
        list(np.arange(40).reshape(2, 20)),
        3,
    )

    def make(split):
        return cleaning_network(
            split, model=np.zeros((3, 3)), ridge=1e-3, wrong=redrawn.wrong
        )

    return Case(make, split, selection, training, 1e-3, 0.03, Partition.RANDOM)


@pytest.mark.nightly
def test_a_reference_is_chosen_without_a_look_at_test_examples(case):
    metrics = references.references("cleaning-mnist", case)
    flipped = case.split.test._replace(labels=(case.split.test.labels + 1) % 3)
    other = case._replace(split=case.split._replace(test=flipped))
    models = [
        references.select(
            "cleaning-mnist", c, references._smallest_losses(c), c.selection
        ).y
        for c in (case, other)
    ]
    np.testing.assert_array_equal(*models)
    assert metrics["no tuning"] <= metrics[references.SMALLEST]
    assert metrics[references.CLEAN] > 0.9
    assert set(metrics) == {
        "no tuning",
        "one penalty",
        "validation data alone",
        "training and validation data",
        references.SMALLEST,
        references.CLEAN,
    }
