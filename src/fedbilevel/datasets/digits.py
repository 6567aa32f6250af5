"""Handwritten digits of 8 × 8 pixels, bundled with scikit-learn."""

import numpy as np

from fedbilevel.datasets.table import DataSet, LabelledData
from fedbilevel.extras import needs

_TRAINING = 1437  # 80 % of the examples


def digits() -> DataSet:
    """Return the 1,797 digits of scikit-learn: 64 pixels in [0, 1], 10 classes.

    scikit-learn has no test split: 80 % of the rows, shuffled with a fixed seed, are
    for training and 20 % for test.

    Returns:
        The set: 1,437 training examples and 360 test examples.

    Raises:
        ImportError: scikit-learn is not installed.

    Example:
        >>> from fedbilevel.datasets import digits
        >>> data = digits()
        >>> data.train.features.shape, data.train.features.max()
        ((1437, 64), np.float32(1.0))
        >>> data.test.labels[:8]
        array([7, 9, 4, 7, 0, 2, 6, 1], dtype=int32)
    """
    with needs("Images of the data set digits", "scikit-learn", "scikit-learn"):
        from sklearn.datasets import load_digits
    pixels, labels = load_digits(return_X_y=True)
    # NumPy guarantees the stream of the legacy generator across versions.
    order = np.random.RandomState(0).permutation(len(labels))
    features = (pixels[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int32)
    return DataSet(
        LabelledData(features[:_TRAINING], labels[:_TRAINING]),
        LabelledData(features[_TRAINING:], labels[_TRAINING:]),
        classes=10,
    )
