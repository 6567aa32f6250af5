"""Partition a table of examples among devices with Flower's partitioners."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.extras import needs
from fedbilevel.mathematics.problem import Batch

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

_ROW = "fedbilevel_row"


def partition(
    partitioner: "Partitioner", *, seed: int = 0, **columns: Sequence[Any] | np.ndarray
) -> list[Int[np.ndarray, "rows"]]:
    """Return the rows of each device, split by a partitioner of flwr-datasets.

    Rows are shuffled first, since some partitioners (`IidPartitioner` too) split the
    table in its order.

    Args:
        partitioner: new `IidPartitioner`, `DirichletPartitioner`,
            `NaturalIdPartitioner` or other object of `flwr_datasets.partitioner`.
        seed: seed of the shuffle.
        **columns: columns that the partitioner uses, by name.

    Returns:
        One array of row numbers per device.

    Example:
        >>> from flwr_datasets.partitioner import NaturalIdPartitioner
        >>> from fedbilevel.data.partitions import partition
        >>> rows = partition(NaturalIdPartitioner("city"), city=["a", "b", "a", "b"])
        >>> sorted(sorted(part.tolist()) for part in rows)
        [[0, 2], [1, 3]]
    """
    with needs("Partitions", "flwr-datasets", "'fedbilevel[partition]'"):
        from datasets import Dataset
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"Columns have the lengths {lengths}. Pass partition at least one column, "
            "and columns of equal length."
        )
    rows = np.random.default_rng(seed).permutation(next(iter(lengths.values())))
    shuffled = {name: np.asarray(column)[rows] for name, column in columns.items()}
    partitioner.dataset = Dataset.from_dict({_ROW: rows, **shuffled})
    return [
        np.asarray(partitioner.load_partition(device)[_ROW])
        for device in range(partitioner.num_partitions)
    ]


def take(examples: Batch, rows: Int[np.ndarray, "rows"]) -> Batch:
    """Return some rows of every array of a tree.

    Example:
        >>> import numpy as np
        >>> take({"a": np.arange(5)}, np.array([1, 3]))
        {'a': array([1, 3])}
    """
    return jax.tree.map(lambda array: array[rows], examples)


def fill_empty_parts(
    parts: Sequence[Int[np.ndarray, "_"]],
) -> list[Int[np.ndarray, "_"]]:
    """Return parts without empty ones: each takes a row from the largest part.

    Example:
        >>> fill_empty_parts([np.array([4, 5, 6]), np.array([], int)])
        [array([5, 6]), array([4])]
    """
    filled = list(parts)
    for device in [k for k, part in enumerate(filled) if not len(part)]:
        largest = int(np.argmax([len(part) for part in filled]))
        filled[device], filled[largest] = filled[largest][:1], filled[largest][1:]
    return filled
