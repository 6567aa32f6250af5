"""Split the examples of an experiment over its devices."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from fedbilevel import datasets
from fedbilevel.data.partitions import fill_empty_parts, partition, take
from fedbilevel.datasets.table import DataSet, GroupedDataSet, LabelledData
from fedbilevel.experiments.schema.data import HUB_FIELDS, Data, Partition
from fedbilevel.extras import needs
from fedbilevel.problems.imbalance import long_tail
from fedbilevel.problems.label_noise import redraw_labels
from fedbilevel.problems.split import Split, SplitData


def split_data(data: Data, parts: Partition) -> SplitData:
    """Return the examples of a data set, split over devices.

    Raises:
        ValueError: if the data set has too few examples or no natural groups.

    Example:
        >>> data = Data(train_size=100, validation_size=50)
        >>> result = split_data(data, Partition(devices=3))
        >>> [len(rows) for rows in result.split.training_rows]
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
            f"data.train_size + data.validation_size is {training} + {validation}, but "
            f"{data.path or data.name} has {len(order)} examples; reduce the sizes."
        )
    groups = None
    if parts.natural:
        groups = _groups(source, data.name)[order]
    elif parts.devices > min(training, validation):
        raise ValueError(
            f"partition.devices is {parts.devices}, but there are {training} training "
            f"and {validation} validation examples, and each device needs one of both; "
            "reduce partition.devices, or raise data.train_size or "
            "data.validation_size."
        )
    table = take(table, np.arange(training + validation))
    wrong = None
    training_rows = np.arange(training)
    if data.imbalance > 1:
        training_rows = long_tail(
            table.labels[:training], source.classes, data.imbalance, data.seed
        )
    lower = take(table, training_rows)
    if data.label_noise:
        redrawn = redraw_labels(
            lower.labels, data.label_noise, source.classes, data.seed
        )
        lower, wrong = LabelledData(lower.features, redrawn.labels), redrawn.wrong
    upper = take(table, np.arange(training, training + validation))
    if groups is None:
        labels = np.concatenate([lower.labels, upper.labels])
        rows = fill_empty_parts(_partition(labels, parts))
    else:
        validation_rows = np.arange(training, len(table.labels))
        members = groups[np.concatenate([training_rows, validation_rows])]
        rows = [np.flatnonzero(members == group) for group in np.unique(members)]
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
            f"partition.natural is true, but the data set {name} has no natural groups "
            "(adult has); remove the key, and set partition.devices."
        )
    return source.train_groups


def _source(data: Data) -> DataSet | GroupedDataSet:
    load: Callable[..., DataSet | GroupedDataSet] = getattr(datasets, data.name)
    options = {name: getattr(data, name) for name in HUB_FIELDS}
    return load(**{name: value for name, value in options.items() if value is not None})


def _partition(
    labels: Int[np.ndarray, "examples"], parts: Partition
) -> list[Int[np.ndarray, "_"]]:
    if parts.concentration is None:
        order = np.random.default_rng(parts.seed).permutation(len(labels))
        return list(np.array_split(order, parts.devices))
    with needs("Dirichlet partitions", "flwr-datasets", "'fedbilevel[partition]'"):
        from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        parts.devices,
        "label",
        parts.concentration,
        min_partition_size=1,
        seed=parts.seed,
    )
    return partition(partitioner, seed=parts.seed, label=labels.astype(np.int64))
