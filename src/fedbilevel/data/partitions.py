"""Dealing one table of examples to devices with Flower's partitioners."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.mathematics.problem import Batch

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

_ROW = "fedbilevel_row"


def partition(
    partitioner: "Partitioner", *, seed: int = 0, **columns: Sequence[Any] | np.ndarray
) -> list[Int[np.ndarray, "rows"]]:
    """Return the rows of each device, as one of flwr-datasets' partitioners deals them.

    Rows are shuffled first, since some of those partitioners (the IID one too) cut the
    table in the order it comes.

    Args:
        partitioner: `IidPartitioner`, `DirichletPartitioner`, `NaturalIdPartitioner` or
            another of `flwr_datasets.partitioner`, made for this call.
        seed: of the shuffle.
        **columns: the columns that the partitioner looks at, by the names it was given.

    Returns:
        One array of row numbers a device.

    Example:
        >>> from flwr_datasets.partitioner import NaturalIdPartitioner
        >>> from fedbilevel.data.partitions import partition
        >>> rows = partition(NaturalIdPartitioner("city"), city=["a", "b", "a", "b"])
        >>> sorted(sorted(part.tolist()) for part in rows)
        [[0, 2], [1, 3]]
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise ImportError(
            "partitions are dealt by flwr-datasets, which is not installed; "
            "run: pip install 'fedbilevel[partition]'"
        ) from error
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"partition needs columns of one length, but they have {lengths}."
        )
    rows = np.random.default_rng(seed).permutation(next(iter(lengths.values())))
    shuffled = {name: np.asarray(column)[rows] for name, column in columns.items()}
    partitioner.dataset = Dataset.from_dict({_ROW: rows, **shuffled})
    return [
        np.asarray(partitioner.load_partition(device)[_ROW])
        for device in range(partitioner.num_partitions)
    ]


def take(examples: Batch, rows: Int[np.ndarray, "rows"]) -> Batch:
    """Return the given rows of every array.

    Example:
        >>> import numpy as np
        >>> take({"a": np.arange(5)}, np.array([1, 3]))
        {'a': array([1, 3])}
    """
    return jax.tree.map(lambda array: array[rows], examples)


def fill_empty_parts(
    parts: Sequence[Int[np.ndarray, "_"]],
) -> list[Int[np.ndarray, "_"]]:
    """Let devices without a row have one of the device that has most.

    Example:
        >>> fill_empty_parts([np.array([4, 5, 6]), np.array([], int)])
        [array([5, 6]), array([4])]
    """
    dealt = list(parts)
    for device in [k for k, part in enumerate(dealt) if not len(part)]:
        richest = int(np.argmax([len(part) for part in dealt]))
        dealt[device], dealt[richest] = dealt[richest][:1], dealt[richest][1:]
    return dealt
