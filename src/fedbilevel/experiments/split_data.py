"""Examples dealt to devices, as an experiment asks for."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from fedbilevel import datasets
from fedbilevel.data.partitions import fill_empty_parts, partition, take
from fedbilevel.datasets.table import DataSet, GroupedDataSet, Labelled
from fedbilevel.experiments.schema.data import HUB_FIELDS, Data, Partition
from fedbilevel.problems.imbalance import long_tail
from fedbilevel.problems.label_noise import redraw_labels
from fedbilevel.problems.split import Split, SplitData


def split_data(data: Data, held: Partition) -> SplitData:
    """Return examples dealt to devices.

    Example:
        >>> found = split_data(Data(train_size=100, validation_size=50), Partition(devices=3))
        >>> [len(rows) for rows in found.split.training_rows]
        [30, 36, 34]
    """
    source = _source(data)
    generator = np.random.default_rng(data.seed)
    order = generator.permutation(len(source.train.labels))
    table = take(source.train, order)
    validation = data.validation_size or max(1, len(order) // 5)
    training = data.train_size or len(order) - validation
    if training + validation > len(order):
        raise ValueError(
            f"data.train_size and data.validation_size ask for {training} + {validation} "
            f"examples, but {data.path or data.name} has {len(order)}."
        )
    groups = None
    if held.natural:
        groups = _groups(source, data.name)[order]
    elif held.devices > min(training, validation):
        raise ValueError(
            f"partition.devices asks for {held.devices} devices, each with examples of "
            f"both kinds, but there are {training} for training and {validation} for "
            "validation; ask for fewer devices or more examples."
        )
    table = take(table, np.arange(training + validation))
    wrong = None
    kept = np.arange(training)
    if data.imbalance > 1:
        kept = long_tail(
            table.labels[:training], source.classes, data.imbalance, data.seed
        )
    lower = take(table, kept)
    if data.label_noise:
        redrawn = redraw_labels(
            lower.labels, data.label_noise, source.classes, data.seed
        )
        lower, wrong = Labelled(lower.features, redrawn.labels), redrawn.wrong
    upper = take(table, np.arange(training, training + validation))
    if groups is None:
        both = np.concatenate([lower.labels, upper.labels])
        rows = fill_empty_parts(_deal(both, held))
    else:
        chosen = groups[np.concatenate([kept, np.arange(training, len(table.labels))])]
        rows = [np.flatnonzero(chosen == group) for group in np.unique(chosen)]
    count = len(lower.labels)
    return SplitData(
        Split(
            lower,
            upper,
            source.test,
            fill_empty_parts([part[part < count] for part in rows]),
            fill_empty_parts([part[part >= count] - count for part in rows]),
            source.classes,
        ),
        wrong,
    )


def _groups(source: DataSet | GroupedDataSet, name: str) -> Int[np.ndarray, "examples"]:
    if not isinstance(source, GroupedDataSet):
        raise ValueError(
            f"partition.natural: {name} has no natural groups, which adult has; leave "
            "it out, and say how many devices there are."
        )
    return source.train_groups


def _source(data: Data) -> DataSet | GroupedDataSet:
    load: Callable[..., DataSet | GroupedDataSet] = getattr(datasets, data.name)
    given = {name: getattr(data, name) for name in HUB_FIELDS}
    return load(**{name: value for name, value in given.items() if value is not None})


def _deal(
    labels: Int[np.ndarray, "examples"], held: Partition
) -> list[Int[np.ndarray, "_"]]:
    if held.concentration is None:
        order = np.random.default_rng(held.seed).permutation(len(labels))
        return list(np.array_split(order, held.devices))
    try:
        from flwr_datasets.partitioner import DirichletPartitioner
    except ImportError as error:
        raise ImportError(
            "partition.concentration needs flwr-datasets; run: pip install "
            "'fedbilevel[partition]'"
        ) from error

    partitioner = DirichletPartitioner(
        held.devices, "label", held.concentration, min_partition_size=1, seed=held.seed
    )
    return partition(partitioner, seed=held.seed, label=labels.astype(np.int64))
