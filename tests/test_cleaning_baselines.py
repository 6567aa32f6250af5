"""Tests of the baselines of the README's example."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cleaning_baselines import PROBLEM, START, fit, losses, split

pytestmark = [pytest.mark.single_precision, pytest.mark.slow]


def test_a_split_has_the_readmes_numbers_and_no_image_twice():
    digits = split(seed=0)
    sizes = [len(table.labels) for table in digits[:3]]
    assert sizes == [8 * 140, 8 * 10, 597]
    correct_labels = {
        image.tobytes(): label
        for seed in (1, 2)
        for table in split(seed)[1:3]
        for image, label in zip(*table, strict=True)
    }
    known = [
        (label, correct_labels[image.tobytes()])
        for image, label in zip(*digits.training, strict=True)
        if image.tobytes() in correct_labels
    ]
    label, correct = np.array(known).T
    assert 0.4 < np.mean(label != correct) < 0.5
    assert set((label - correct) % 10) == {0, 1}
    images = np.concatenate([table.features for table in digits[:3]])
    assert len(np.unique(images, axis=0)) == len(images)


def test_a_single_penalty_is_trained_to_convergence():
    table = split(seed=0).validation
    y = fit(table, penalty=0.1)
    before, after = (
        np.mean(losses(jnp.asarray(point), *table)) for point in (START, y)
    )
    assert after < before - 0.5
    scores = table.features @ y.T
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    gradient = (
        (shares - np.eye(10)[table.labels]).T @ table.features / len(table.labels)
    )
    assert np.abs(gradient + 0.1 * y).max() < 1e-3


def test_equal_weights_are_half_the_plain_loss():
    batch = (*split(seed=0).training, np.arange(8 * 140))
    weighted = PROBLEM.lower_loss(np.zeros(8 * 140, np.float32), START, batch)
    assert float(weighted) == pytest.approx(0.5 * np.log(10), rel=1e-5)
