"""Data sets as arrays of features and labels, for training and for test."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32


class LabelledData(NamedTuple):
    """Examples and their classes.

    Attributes:
        features: features in single precision, one row per example.
        labels: class of each example, from 0.
    """

    features: Float32[np.ndarray, "examples features"]
    labels: Int32[np.ndarray, "examples"]


class DataSet(NamedTuple):
    """A data set with its published split into training and test examples.

    Attributes:
        train: examples for training and validation.
        test: examples for the final evaluation.
        classes: number of classes.

    Example:
        >>> from fedbilevel.datasets import digits
        >>> train, test, classes = digits()
        >>> train.features.shape, test.features.shape, classes
        ((1437, 64), (360, 64), 10)
    """

    train: LabelledData
    test: LabelledData
    classes: int


class GroupedDataSet(NamedTuple):
    """A data set whose examples belong to groups, a natural choice of devices.

    Attributes:
        train: examples for training and validation.
        test: examples for the final evaluation.
        classes: number of classes.
        train_groups: group of each training example, from 0.
        test_groups: group of each test example, from 0.
        group_names: name of each group.

    Example:
        >>> import numpy as np
        >>> rows = LabelledData(np.zeros((3, 2), np.float32), np.zeros(3, np.int32))
        >>> groups = np.array([1, 0, 1], np.int32)
        >>> data = GroupedDataSet(rows, rows, 2, groups, groups, ("north", "south"))
        >>> [np.flatnonzero(data.train_groups == g).tolist() for g in (0, 1)]
        [[1], [0, 2]]
    """

    train: LabelledData
    test: LabelledData
    classes: int
    train_groups: Int32[np.ndarray, "train"]
    test_groups: Int32[np.ndarray, "test"]
    group_names: tuple[str, ...]
