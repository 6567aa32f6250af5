"""Metrics against scikit-learn's; noise and imbalance against their definitions."""

import jax
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from fedbilevel.problems import (
    cleaning_network,
    hyper_cleaning,
    hyper_representation,
    long_tail,
    loss_tuning,
    redraw_labels,
    regularisation,
)
from fedbilevel.problems.classification import area_under_curve, balanced_accuracy
from fedbilevel.problems.imbalance import class_weights
from tests.problems import tables
from tests.problems.tables import CASES


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["regularisation", "hyper_cleaning", "cleaning_network"]
)
def test_accuracy_is_that_of_the_linear_model_on_test_examples(name):
    case = CASES[name]()
    test = tables.split().test
    expected = accuracy_score(test.labels, np.argmax(test.features @ case.y.T, axis=1))
    got = case.task.metrics["accuracy"](case.x, case.y)
    assert got == expected
    assert 0 < got < 1


def test_accuracy_of_a_representation_is_that_of_backbone_and_head():
    case = CASES["hyper_representation"]()
    test = tables.split().test
    units = test.features
    for layer in case.x:
        units = np.tanh(units @ layer.weights.T + layer.bias)
    expected = accuracy_score(test.labels, np.argmax(units @ case.y.T, axis=1))
    got = case.task.metrics["accuracy"](case.x, case.y)
    assert got == expected
    assert 0 < got < 1


def test_balanced_accuracy_equals_scikit_learns():
    case = CASES["loss_tuning"]()
    test = tables.split().test
    guesses = np.argmax(test.features @ case.y.T, axis=1)
    expected = balanced_accuracy_score(test.labels, guesses)
    got = case.task.metrics["balanced_accuracy"](case.x, case.y)
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    # Uneven classes, one of them without examples.
    generator = np.random.default_rng(0)
    labels = generator.choice([0, 2, 3], 200, p=[0.7, 0.2, 0.1])
    logits = generator.normal(size=(200, 4))
    logits[:, 1] = -9.0
    expected = balanced_accuracy_score(labels, np.argmax(logits, axis=1))
    np.testing.assert_allclose(balanced_accuracy(logits, labels), expected)


def test_area_under_curve_equals_scikit_learns_with_ties():
    generator = np.random.default_rng(1)
    scores = generator.integers(0, 6, 100).astype(float)
    positive = generator.random(100) < 0.3
    expected = roc_auc_score(positive, scores)
    np.testing.assert_allclose(area_under_curve(scores, positive), expected)


def test_detection_looks_at_the_weights_of_the_examples_that_devices_hold():
    wrong = np.arange(7) % 2 == 0
    some = [np.array([6, 1, 2]), np.array([3, 4])]
    rows = np.concatenate(some)
    split = tables.split()._replace(training_rows=some)
    x = np.random.default_rng(2).normal(size=7)
    got = hyper_cleaning(split, wrong=wrong).metrics["detection"](x, None)
    assert got == roc_auc_score(wrong[rows], -x[rows])

    model = tables.MODEL
    task = cleaning_network(split, model=model, hidden=1, wrong=wrong)
    training = split.training
    hints = np.array(
        [
            tables.cross_entropy(model @ features, label)
            for features, label in zip(training.features, training.labels, strict=True)
        ]
    )
    network = task.x._replace(slope=np.ones(1), output=-np.ones(1))
    network = jax.tree.map(np.asarray, network)
    # With one unit of negative output, a larger hint gives a smaller weight.
    expected = roc_auc_score(wrong[rows], hints[rows])
    assert task.metrics["detection"](network, None) == expected


def test_detection_needs_both_kinds_of_labels():
    split = tables.split()
    assert "detection" not in hyper_cleaning(split).metrics
    with pytest.raises(ValueError, match="wrong has the same value for all examples"):
        hyper_cleaning(split, wrong=np.zeros(7, bool))
    with pytest.raises(ValueError, match=r"wrong has shape \(3,\)"):
        hyper_cleaning(split, wrong=np.array([True, False, True]))


def test_redrawn_labels_are_uniform_and_known():
    labels = np.repeat(np.arange(5), 2000)
    before = labels.copy()
    drawn = redraw_labels(labels, share=0.4, classes=5, seed=3)
    np.testing.assert_array_equal(labels, before)
    np.testing.assert_array_equal(drawn.wrong, drawn.labels != labels)
    # Of 4000 redrawn labels, each of the four wrong classes has 800 in expectation.
    counts = np.bincount((drawn.labels - labels)[drawn.wrong] % 5, minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], 800, atol=4 * np.sqrt(800))
    again = redraw_labels(labels, share=0.4, classes=5, seed=3)
    np.testing.assert_array_equal(again.labels, drawn.labels)
    assert not redraw_labels(labels, share=0.0, classes=5).wrong.any()
    with pytest.raises(ValueError, match=r"share is 1\.5, expected"):
        redraw_labels(labels, share=1.5, classes=5)


def test_a_long_tail_falls_geometrically():
    labels = np.random.default_rng(4).permutation(np.repeat(np.arange(5), 1000))
    chosen = long_tail(labels, classes=5, ratio=100.0)
    assert len(np.unique(chosen)) == len(chosen)
    expected = [1000, 316, 100, 31, 10]  # 1000 · 100^{−c/4}
    np.testing.assert_array_equal(np.bincount(labels[chosen]), expected)
    np.testing.assert_array_equal(long_tail(labels, 5), long_tail(labels, 5))
    # If the rarest class is not the last, the whole tail shrinks.
    uneven = np.repeat(np.arange(3), [100, 5, 100])
    counts = np.bincount(uneven[long_tail(uneven, classes=3, ratio=4.0)])
    np.testing.assert_array_equal(counts, [10, 5, 2])


def test_impossible_tails_are_refused():
    with pytest.raises(ValueError, match="No example has the label 1"):
        long_tail(np.array([0, 2]), classes=3)
    with pytest.raises(ValueError, match="ratio of at least 1"):
        long_tail(np.array([0, 1]), classes=2, ratio=0.5)


def test_class_weights_give_every_class_the_same_part_in_the_mean_over_devices():
    generator = np.random.default_rng(5)
    parts = [generator.choice(3, size, p=[0.7, 0.2, 0.1]) for size in (40, 60, 90)]
    weights = np.array(class_weights(parts, classes=3))
    for label in range(3):
        part = np.mean([np.mean(weights[p] * (p == label)) for p in parts])
        np.testing.assert_allclose(part, 1 / 3, rtol=1e-12)


def test_class_weights_follow_the_weights_of_devices():
    parts = [np.array([0, 0, 1]), np.array([1, 2, 2, 2])]
    devices = np.array([0.25, 0.75])
    weights = np.array(class_weights(parts, classes=3, weights=[1.0, 3.0]))
    for label in range(3):
        shares = [np.mean(weights[p] * (p == label)) for p in parts]
        np.testing.assert_allclose(devices @ shares, 1 / 3, rtol=1e-12)


def test_impossible_settings_are_refused():
    split = tables.split()
    for make in (hyper_cleaning, loss_tuning, hyper_representation):
        with pytest.raises(ValueError, match=r"ridge is 0\.0, expected"):
            make(split, ridge=0.0)
    with pytest.raises(ValueError, match=r"penalty is 0\.0, expected"):
        regularisation(split, penalty=0.0)
    with pytest.raises(ValueError, match=r"model has shape \(2, 2\)"):
        cleaning_network(split, model=np.eye(2))
    with pytest.raises(ValueError, match=r"units is \(\), expected at least one"):
        hyper_representation(split, units=())
    lacking = split._replace(validation_rows=[np.array([0]), np.array([1])])
    with pytest.raises(ValueError, match="No example has the label 2"):
        loss_tuning(lacking)
