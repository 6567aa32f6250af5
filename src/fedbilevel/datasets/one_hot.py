"""Columns of a table as binary features: one an interval, or one a word."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32


class Number(NamedTuple):
    """A numeric column, which becomes one feature an interval.

    Attributes:
        name: of the column.
        cuts: where each interval but the first begins.

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
    """A column of words, which becomes one feature a word; "?" has none.

    Attributes:
        name: of the column.
        words: what it may hold, in the order of the features.

    Example:
        >>> Category("sex", ("Female", "Male")).encode(["Male", "?"])
        array([[0., 1.], [0., 0.]], dtype=float32)
    """

    name: str
    words: tuple[str, ...]

    def numbers(self, values: list[str]) -> Int32[np.ndarray, "rows"]:
        """Return each value's number among the words; "?" comes after the last."""
        number = {word: i for i, word in enumerate((*self.words, "?"))}
        if unknown := sorted(set(values) - set(number)):
            raise ValueError(
                f"the column {self.name} has {unknown}, which the published table "
                "does not; replace the file."
            )
        return np.array([number[value] for value in values], np.int32)

    def encode(self, values: list[str]) -> Float32[np.ndarray, "rows features"]:
        """Return a 1 in the column of each value's word."""
        return _one_hot(self.numbers(values), len(self.words))


def _one_hot(
    numbers: Int[np.ndarray, "rows"], features: int
) -> Float32[np.ndarray, "rows features"]:
    matches: Bool[np.ndarray, "rows features"] = numbers[:, None] == np.arange(features)
    return matches.astype(np.float32)
