"""Examples that several devices hold, or that both losses read.

A set is the upper or the lower examples of a device. Two sets have the same examples if
a row of one is in the memory of a row of the other, in one array that is not constant;
or if nearly all rows of the smaller one are equal to rows of the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.mathematics.problem import Batch

SHARE = 0.9
"""Share of the smaller set whose rows are in another one, from which it is a copy. Of
independent rows with few values, at most 1 / e are expected to be once in each."""
FEWEST = 16
"""The smallest set that is compared by its numbers: a few rows may be equal by
chance."""
MOST_SETS = 32
"""The largest number of sets with one row of which all pairs are compared."""


class MemoryRows(NamedTuple):
    """The rows of an array in memory.

    Attributes:
        address: first byte of the first row.
        stride: bytes from one row to the next.
        length: number of rows.
    """

    address: int
    stride: int
    length: int


class Holder(NamedTuple):
    """A set of examples.

    Attributes:
        device: number of the device.
        level: "upper" or "lower".
    """

    device: int
    level: str

    def __str__(self) -> str:
        return f"{self.level} examples of device {self.device}"


class Copies(NamedTuple):
    """Two sets with the same examples."""

    first: Holder
    second: Holder


def rows_in_memory(sets: Sequence[Batch]) -> list[tuple[MemoryRows, ...]]:
    """Return the places of the rows of all arrays of some sets.

    Rows of no bytes have no place, and their length is 0.

    Example:
        >>> rows = np.ones((4, 2), np.float32)
        >>> ((first,), (second,)) = rows_in_memory([rows, rows[1:]])
        >>> second.address - first.address, second.stride, second.length
        (8, 8, 3)
    """
    # Arrays stay alive until all places are known: an address may be used again.
    arrays = [list(map(np.asarray, jax.tree.leaves(each))) for each in sets]
    return [
        tuple(
            MemoryRows(
                array.ctypes.data,
                array.strides[0],
                len(array) if array[:1].nbytes else 0,
            )
            for array in each
        )
        for each in arrays
    ]


def varied_arrays(table: Batch) -> list[bool]:
    """Return for each array of a table whether it tells examples apart.

    An array of equal rows, such as weights of 1, does not, and examples with other
    arrays may share it. Without any other array, all do.

    Example:
        >>> varied_arrays((np.arange(3), np.ones(3))), varied_arrays(np.ones(3))
        ([True, False], [True])
    """
    leaves = map(np.asarray, jax.tree.leaves(table))
    varied = [bool(np.any(leaf != leaf[:1])) for leaf in leaves]
    return varied if any(varied) else [True] * len(varied)


def find_same_memory(sets: Sequence[Sequence[MemoryRows]]) -> tuple[int, int] | None:
    """Return the numbers of two sets that have a row in common; None without any.

    Example:
        >>> table = np.ones((6, 2))
        >>> find_same_memory(rows_in_memory([table[:3], table[3:]]))
        >>> find_same_memory(rows_in_memory([table[:4], table[3:]]))
        (0, 1)
    """
    places = [(number, rows) for number, each in enumerate(sets) for rows in each]
    if not places:
        return None
    addresses = np.concatenate(
        [rows.address + rows.stride * np.arange(rows.length) for _, rows in places]
    )
    owners = np.repeat(
        [number for number, _ in places], [rows.length for _, rows in places]
    )
    order = np.lexsort((owners, addresses))
    addresses, owners = addresses[order], owners[order]
    common = (addresses[1:] == addresses[:-1]) & (owners[1:] != owners[:-1])
    if not common.any():
        return None
    place = int(np.argmax(common))
    return int(owners[place]), int(owners[place + 1])


def find_equal_rows(sets: Sequence[Batch]) -> tuple[int, int] | None:
    """Return the numbers of two sets that are copies; None without any.

    Only rows that are once in each of both sets count, so that tables of few different
    rows, such as zeros, are not copies of each other. Sets of other shapes or dtypes
    are not compared.

    Example:
        >>> table = np.arange(60.0)
        >>> find_equal_rows([table[:30], table[30:], table[29::-1].copy()])
        (0, 2)
        >>> find_equal_rows([np.zeros(30), np.zeros(30)])
    """
    forms: dict[str, list[int]] = {}
    tables = [jax.tree.map(np.asarray, each) for each in sets]
    for number, table in enumerate(tables):
        shape = jax.tree.map(lambda leaf: (leaf.shape[1:], str(leaf.dtype)), table)
        forms.setdefault(str(shape), []).append(number)
    for numbers in forms.values():
        copies = _equal_rows([_digests(tables[number]) for number in numbers])
        if copies is not None:
            return numbers[copies[0]], numbers[copies[1]]
    return None


def _digests(table: Batch) -> Int[np.ndarray, "rows"]:
    """Return a number for each row, by its bytes in all arrays."""
    leaves = jax.tree.leaves(table)
    rows = [
        np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8)
        for leaf in leaves
        if leaf[:1].nbytes
    ]
    if not rows:
        return np.zeros(len(leaves[0]), np.int64)
    whole = np.concatenate(rows, axis=1)
    return np.array([hash(row.tobytes()) for row in whole], np.int64)


def _equal_rows(
    sets: Sequence[Int[np.ndarray, "..."]],
) -> tuple[int, int] | None:
    sizes = np.array([len(each) for each in sets])
    once = []
    for each in sets:
        values, counts = np.unique(each, return_counts=True)
        once.append(values[counts == 1])
    rows = np.concatenate(once)
    owners = np.repeat(np.arange(len(sets)), [len(each) for each in once])
    order = np.lexsort((owners, rows))
    rows, owners = rows[order], owners[order]
    groups = []
    # All pairs of the sets that have a row, up to MOST_SETS sets.
    for distance in range(1, MOST_SETS):
        common = rows[distance:] == rows[:-distance]
        if not common.any():
            break
        groups.append(
            np.stack([owners[:-distance][common], owners[distance:][common]], axis=1)
        )
    if not groups:
        return None
    pairs = np.concatenate(groups)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    smaller = sizes[pairs].min(axis=1)
    copies = (smaller >= FEWEST) & (counts >= SHARE * smaller)
    if not copies.any():
        return None
    first, second = pairs[int(np.argmax(copies))]
    return int(first), int(second)
