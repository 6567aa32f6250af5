"""The split of an experiment's examples over its devices."""

import numpy as np
import pytest

from fedbilevel.experiments.schema import Data, Partition
from fedbilevel.experiments.split_data import split_data


def test_every_example_is_assigned_once():
    split, wrong, *_ = split_data(
        Data(train_size=100, validation_size=50, label_noise=0.5), Partition(devices=7)
    )
    for parts, count in ((split.training_rows, 100), (split.validation_rows, 50)):
        assert len(parts) == 7
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    clean, *_ = split_data(
        Data(train_size=100, validation_size=50), Partition(devices=7)
    )
    np.testing.assert_array_equal(wrong, split.training.labels != clean.training.labels)


def test_a_long_tail_is_of_training_alone():
    split, *_ = split_data(Data(imbalance=20.0), Partition())
    counts = np.bincount(split.training.labels)
    assert counts.max() >= 15 * counts.min()
    assert np.bincount(split.validation.labels).min() > 20


def test_data_without_groups_have_no_natural_devices():
    with pytest.raises(ValueError, match="digits has no natural groups"):
        split_data(Data(), Partition(natural=True))
