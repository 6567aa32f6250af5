"""One-hot encoding of any table: quantile intervals of numbers, values of categories.

The tables of `one_hot` have intervals and values that are published; here they come
from the training rows.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from fedbilevel.datasets.groups import MISSING, texts_of

Column: TypeAlias = Any
"""Values of all rows: a list, an array, or a column of a data frame."""

_INTERVALS = 5
_MOST_VALUES = 1000


def encode(
    columns: Mapping[str, Column],
    training: Bool[np.ndarray, "rows"],
) -> Float32[np.ndarray, "rows features"]:
    """Return a table as features that are 0 or 1.

    - A column of numbers has one feature for each of five intervals, which begin at the
      quintiles of its training rows; quintiles that are equal begin one interval.
    - Any other column has one feature per value of the training rows, in alphabetical
      order; a value that only other rows have is 0 in all of them.
    - A column with missing values (None, NaN, empty) in the training rows has one more
      feature, which is 1 where the value is missing.

    Args:
        columns: values of each row, by name of the column.
        training: mask of the rows that determine intervals and values.

    Returns:
        The features, in the order of the columns.

    Raises:
        ValueError: a column has more than 1,000 different values, such as dates.

    Example:
        >>> table = {"age": [20, 30, 40, np.nan], "sex": ["f", "m", "f", "x"]}
        >>> encode(table, np.array([True, True, True, False]))
        array([[1., 0., 0., 1., 0.],
               [0., 1., 0., 0., 1.],
               [0., 0., 1., 1., 0.],
               [0., 0., 0., 0., 0.]], dtype=float32)
    """
    parts = [_encode_column(*column, training) for column in columns.items()]
    if not parts:
        return np.zeros((len(training), 0), np.float32)
    return np.concatenate(parts, axis=1)


def numbers_of(
    values: Column,
) -> Float[np.ndarray, "rows"] | None:
    """Return a column as numbers, NaN where missing; None if it has other values.

    Example:
        >>> numbers_of(["20", "", "4.5"])
        array([20. ,  nan,  4.5])
        >>> numbers_of(["20", "unknown"])
    """
    array = np.asarray(values)
    if array.dtype.kind in "iuf":
        return array.astype(float)
    if array.dtype.kind == "b":
        return None
    texts = texts_of(values)
    try:
        number = {
            text: np.nan if text in MISSING else float(text) for text in set(texts)
        }
    except ValueError:
        return None
    return np.array([number[text] for text in texts], float)


def _encode_column(
    name: str, values: Column, training: Bool[np.ndarray, "rows"]
) -> Float32[np.ndarray, "rows features"]:
    numbers = numbers_of(values)
    if numbers is None:
        return _encode_categories(name, texts_of(values), training)
    return _encode_numbers(numbers, training)


def _encode_numbers(
    numbers: Float[np.ndarray, "rows"], training: Bool[np.ndarray, "rows"]
) -> Float32[np.ndarray, "rows features"]:
    missing = np.isnan(numbers)
    present = numbers[training & ~missing]
    if not len(present):
        return _one_hot(np.where(missing, 0, 1), 1)
    shares = np.arange(1, _INTERVALS) / _INTERVALS
    # Cuts are numbers of the column above its smallest, so that no interval is empty.
    cuts = np.unique(np.quantile(present, shares, method="inverted_cdf"))
    cuts = cuts[cuts > present.min()]
    intervals = np.searchsorted(cuts, numbers, side="right")
    features = len(cuts) + 1
    codes = np.where(missing, features, intervals)
    return _one_hot(codes, features + bool(missing[training].any()))


def _encode_categories(
    name: str, texts: list[str], training: Bool[np.ndarray, "rows"]
) -> Float32[np.ndarray, "rows features"]:
    known = {text for text, used in zip(texts, training, strict=True) if used}
    present = sorted(known - MISSING)
    if len(present) > _MOST_VALUES:
        raise ValueError(
            f"Column {name!r} has {len(present)} different values, such as "
            f"{present[0]!r}, and each would be a feature; at most {_MOST_VALUES} are "
            "allowed. Choose other features, or convert the column to numbers."
        )
    number = {text: code for code, text in enumerate(present)}
    number |= dict.fromkeys(MISSING, len(present))
    features = len(present) + bool(known & MISSING)
    codes = np.array([number.get(text, features) for text in texts], np.int64)
    return _one_hot(codes, features)


def _one_hot(
    codes: Int[np.ndarray, "rows"], features: int
) -> Float32[np.ndarray, "rows features"]:
    """Return a 1 in the column of each code; a row of zeros for a code beyond them."""
    encoded = np.zeros((len(codes), features), np.float32)
    rows = np.flatnonzero(codes < features)
    encoded[rows, codes[rows]] = 1
    return encoded
