"""One-hot encoding of the columns of a table: one feature per interval or category."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32


class Number(NamedTuple):
    """A numeric column, encoded as one feature per interval.

    Attributes:
        name: name of the column.
        cuts: lower bound of each interval except the first.

    Example:
        >>> Number("age", (26, 33)).encode(["25", "26"])
        array([[1., 0., 0.], [0., 1., 0.]], dtype=float32)
    """

    name: str
    cuts: tuple[int, ...]

    def encode(self, values: list[str]) -> Float32[np.ndarray, "rows features"]:
        """Return a 1 in the column of each value's interval."""
        intervals = np.searchsorted(self.cuts, np.array(values, int), side="right")
        return _one_hot(intervals, len(self.cuts) + 1)


class Category(NamedTuple):
    """A categorical column, encoded as one feature per category; "?" has none.

    Attributes:
        name: name of the column.
        words: allowed values, in the order of the features, separated by spaces.

    Example:
        >>> Category("sex", "Female Male").encode(["Male", "?"])
        array([[0., 1.], [0., 0.]], dtype=float32)
    """

    name: str
    words: str

    @property
    def categories(self) -> list[str]:
        """The allowed values."""
        return self.words.split()

    def numbers(self, values: list[str]) -> Int32[np.ndarray, "rows"]:
        """Return each value's number among the categories; "?" follows the last."""
        number = {value: i for i, value in enumerate((*self.categories, "?"))}
        if unknown := sorted(set(values) - set(number)):
            raise ValueError(
                f"Column {self.name} has the values {unknown}, which the published "
                "table does not have. Replace the file."
            )
        return np.array([number[value] for value in values], np.int32)

    def encode(self, values: list[str]) -> Float32[np.ndarray, "rows features"]:
        """Return a 1 in the column of each value's category."""
        return _one_hot(self.numbers(values), len(self.categories))


def _one_hot(
    numbers: Int[np.ndarray, "rows"], features: int
) -> Float32[np.ndarray, "rows features"]:
    matches: Bool[np.ndarray, "rows features"] = numbers[:, None] == np.arange(features)
    return matches.astype(np.float32)
