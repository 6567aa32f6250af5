"""Handwritten digits of 8 × 8 pixels, which come with scikit-learn."""

import numpy as np

from fedbilevel.datasets.table import DataSet, Labelled

_TRAINING = 1437  # four fifths


def digits() -> DataSet:
    """Return the 1,797 digits of scikit-learn: 64 pixels in [0, 1], 10 classes.

    They come in one table; the split is four fifths to one fifth of its rows in a
    shuffled order that is always the same.

    Returns:
        The set: 1,437 examples to train on and 360 for test.

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
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed; "
            "run: pip install scikit-learn"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    # Drawn by the legacy generator, whose stream NumPy has promised not to change.
    order = np.random.RandomState(0).permutation(len(labels))
    features = (pixels[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int32)
    return DataSet(
        Labelled(features[:_TRAINING], labels[:_TRAINING]),
        Labelled(features[_TRAINING:], labels[_TRAINING:]),
        classes=10,
    )
