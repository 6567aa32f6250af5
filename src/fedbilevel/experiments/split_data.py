"""Split the examples of an experiment over its devices."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from fedbilevel import datasets
from fedbilevel.data.partitions import fill_empty_parts, partition, take
from fedbilevel.datasets.table import DataSet, GroupedDataSet, LabelledData
from fedbilevel.experiments.schema.data import FIELDS, Data, Partition
from fedbilevel.experiments.site_rows import find_sites, mixed_order, require_rows
from fedbilevel.extras import needs
from fedbilevel.problems.imbalance import long_tail
from fedbilevel.problems.label_noise import redraw_labels
from fedbilevel.problems.split import Split, SplitData


def split_data(data: Data, parts: Partition) -> SplitData:
    """Return the examples of a data set, split over devices.

    With `natural` or `by` of the partition, each site has its examples and its name,
    and the same share of them for validation.

    Raises:
        ValueError: if the data set has too few examples or no natural groups, or a site
            has no example for training or for validation.

    Example:
        >>> data = Data(train_size=100, validation_size=50)
        >>> result = split_data(data, Partition(devices=3))
        >>> [len(rows) for rows in result.split.training_rows]
        [30, 36, 34]
    """
    source = _source(data, parts)
    sites = find_sites(source, data, parts) if parts.has_sites else None
    generator = np.random.default_rng(data.seed)
    order = generator.permutation(len(source.train.labels))
    if sites is not None:
        order = order[sites.site_of[order] >= 0]
    training, validation = _sizes(data, len(order))
    if sites is not None:
        order = order[mixed_order(sites.site_of[order], training, validation)]
    elif parts.devices > min(training, validation):
        raise ValueError(
            f"partition.devices is {parts.devices}, but there are {training} training "
            f"and {validation} validation examples, and each device needs one of both; "
            "reduce partition.devices, or raise data.train_size or "
            "data.validation_size."
        )
    order = order[: training + validation]
    table = take(source.train, order)
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
    count = len(lower.labels)
    if sites is None:
        labels = np.concatenate([lower.labels, upper.labels])
        rows = fill_empty_parts(_partition(labels, parts))
        lower_rows = fill_empty_parts([part[part < count] for part in rows])
        upper_rows = fill_empty_parts([part[part >= count] - count for part in rows])
        split = Split(lower, upper, source.test, lower_rows, upper_rows, source.classes)
        return SplitData(split, wrong)
    names = sites.sites.names
    members = sites.site_of[order]
    lower_rows = _rows_of_sites(members[training_rows], len(names))
    upper_rows = _rows_of_sites(members[training:], len(names))
    require_rows(names, lower_rows, upper_rows)
    tables = lower, upper, sites.test
    split = Split(*tables, lower_rows, upper_rows, source.classes, names)
    return SplitData(split, wrong)


def _sizes(data: Data, examples: int) -> tuple[int, int]:
    """Return the numbers of training and of validation examples."""
    validation = data.validation_size or max(1, examples // 5)
    training = data.train_size or examples - validation
    if training + validation > examples:
        raise ValueError(
            f"data.train_size + data.validation_size is {training} + {validation}, but "
            f"{data.path or data.name} has {examples} examples; reduce the sizes."
        )
    return training, validation


def _rows_of_sites(
    members: Int[np.ndarray, "rows"], count: int
) -> list[Int[np.ndarray, "_"]]:
    return [np.flatnonzero(members == site) for site in range(count)]


def _source(data: Data, parts: Partition) -> DataSet | GroupedDataSet:
    load: Callable[..., DataSet | GroupedDataSet] = getattr(datasets, data.name)
    if data.name not in FIELDS:
        if parts.by is not None:
            raise ValueError(
                f"partition.by is {parts.by!r}, but it applies only to data sets with "
                f'name "hub" or "tabular", and data.name is "{data.name}"; set '
                "partition.natural = true for the natural groups of the data set."
            )
        return load()
    names = [name for name in FIELDS[data.name] if name != "path"]
    options = {name: getattr(data, name) for name in names} | {"by": parts.by}
    chosen = {name: value for name, value in options.items() if value is not None}
    return load(data.path, **chosen)


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
