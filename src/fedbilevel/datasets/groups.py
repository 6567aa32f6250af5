"""Groups of examples by the values of a column, and test examples of each group."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32

MISSING = frozenset({"", "NA", "NaN", "nan", "None", "null", "<NA>", "NaT"})
"""Texts of a value that is missing."""

_TEST_SHARE = 5  # a fifth of each group


def groups_of(
    values: Iterable[Any], column: str = "column"
) -> tuple[Int32[np.ndarray, "rows"], tuple[str, ...]]:
    """Return the group of each row, and the names of the groups.

    The names are the different values as text: numbers in their order, before all
    other values in alphabetical order.

    Args:
        values: value of each row: text or numbers, in a list, array or data frame.
        column: name of the column, for the error message.

    Raises:
        ValueError: a value is missing (None, NaN or empty).

    Example:
        >>> groups_of(["Texas", "Maine", "Texas"])
        (array([1, 0, 1], dtype=int32), ('Maine', 'Texas'))
        >>> groups_of([10, 2.5, 2.5])[1]
        ('2.5', '10')
    """
    texts = texts_of(values)
    if not MISSING.isdisjoint(texts):
        missing = sum(text in MISSING for text in texts)
        raise ValueError(
            f"Column {column!r} has no value in {missing} of {len(texts)} rows, so "
            "these rows belong to no group. Fill the values, or remove the rows."
        )
    names = sorted(set(texts), key=_number_first)
    number = {name: group for group, name in enumerate(names)}
    groups = np.array([number[text] for text in texts], np.int32)
    return groups, tuple(names)


def texts_of(values: Iterable[Any]) -> list[str]:
    """Return values as text, whole numbers without decimal places.

    Example:
        >>> texts_of(np.array([3.0, 3.5, np.nan]))
        ['3', '3.5', 'nan']
    """
    listed: list[Any] = getattr(values, "tolist", lambda: list(values))()
    text = {value: _text(value) for value in set(listed)}
    return [text[value] for value in listed]


def ranks_in_groups(
    groups: Int[np.ndarray, "rows"], order: Int[np.ndarray, "rows"]
) -> Int[np.ndarray, "rows"]:
    """Return the number of earlier rows of the same group, for each row.

    Args:
        groups: group of each row, from 0.
        order: row numbers in the order that decides which rows are earlier.

    Example:
        >>> groups = np.array([0, 1, 0, 0])
        >>> ranks_in_groups(groups, np.array([3, 2, 1, 0]))
        array([2, 0, 1, 0])
    """
    by_group = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    ranks = np.empty(len(groups), np.int64)
    ranks[by_group] = np.arange(len(groups)) - starts[groups[by_group]]
    return ranks


def held_out(groups: Int[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Return a mask of the rows for test: a fifth of each group, rounded down.

    The rows are drawn with a fixed seed, so the same table always has the same test
    rows. A group of fewer than five rows has none.

    Example:
        >>> mask = held_out(np.array([0] * 10 + [1] * 4))
        >>> int(mask[:10].sum()), int(mask[10:].sum())
        (2, 0)
    """
    # NumPy guarantees the stream of the legacy generator across versions.
    order = np.random.RandomState(0).permutation(len(groups))
    sizes = np.bincount(groups)[groups]
    mask: np.ndarray = ranks_in_groups(groups, order) < sizes // _TEST_SHARE
    return mask


def _text(value: Any) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value)


def _number_first(name: str) -> tuple[int, float, str]:
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
