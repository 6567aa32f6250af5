import sys

import numpy as np
import pytest

from fedbilevel.datasets import digits


def rows(features, labels):
    table = np.column_stack([features, labels])
    return sorted(map(tuple, table.tolist()))


def test_every_digit_is_in_one_part():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    data = digits()
    got = rows(*data.train) + rows(*data.test)
    assert sorted(got) == rows((pixels / 16).astype(np.float32), labels)
    assert len(data.train.labels) == 1437
    assert data.train.features.dtype == data.test.features.dtype == np.float32
    assert data.train.labels.dtype == data.test.labels.dtype == np.int32


def test_the_split_is_mixed_and_always_the_same():
    data, again = digits(), digits()
    np.testing.assert_array_equal(data.train.features, again.train.features)
    shares = np.bincount(data.test.labels, minlength=data.classes) / 360
    # Each class has 36 in expectation with a deviation of 5.7: 3 deviations are 0.047.
    assert np.abs(shares - 0.1).max() < 0.047


def test_without_scikit_learn_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        digits()
