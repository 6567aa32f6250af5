"""The real tasks: data, partitions and problems."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flwr_datasets.partitioner import DirichletPartitioner

from benchmarks.fitting import softmax
from fedbilevel import InMemoryDevices, datasets
from fedbilevel.data.partitions import fill_empty_parts, partition, take
from fedbilevel.datasets import LabelledData
from fedbilevel.problems import (
    LabelledRows,
    Split,
    Task,
    cleaning_network,
    hyper_representation,
    long_tail,
    loss_tuning,
    redraw_labels,
    regularisation,
)

CONCENTRATION = 0.3


class Partition(StrEnum):
    """The partition of rows among devices."""

    RANDOM = "random"
    HETEROGENEOUS = "heterogeneous"
    """A Dirichlet distribution of labels, or the groups of the data."""
    SHARED = "shared"
    """All devices hold all rows, so the paper's assumption is exactly satisfied."""
    ONE = "one device"
    """One device holds all rows."""


class Case(NamedTuple):
    """A task on a partition.

    Attributes:
        make: function that returns the task of a split.
        split: the tables, and the rows of each device.
        selection: a fifth of the validation examples, held out to choose settings.
        clean: the training table with correct labels, if they were corrupted.
        ridge: penalty of the lower loss.
        upper_step: smallest upper step to draw.
        partition: the partition of the rows.
    """

    make: Callable[[Split], Task]
    split: Split
    selection: LabelledRows
    clean: LabelledData | None
    ridge: float
    upper_step: float
    partition: Partition

    @property
    def task(self) -> Task:
        """The task with its devices."""
        if self.partition is Partition.ONE:
            parts = self.split.training_rows, self.split.validation_rows
            training, validation = ([np.concatenate(rows)] for rows in parts)
            return self.make(
                self.split._replace(training_rows=training, validation_rows=validation)
            )
        task = self.make(self.split)
        if self.partition is Partition.SHARED:
            count = task.devices.device_count
            shared = InMemoryDevices.sharing(task.devices.pooled, count)
            return task._replace(devices=shared)
        return task


def cleaning(
    source: Callable[[], datasets.DataSet], partition: Partition, fast: bool
) -> Case:
    table, test, classes = _shuffled(source())
    count, validation, devices = (600, 200, 4) if fast else (20_000, 1_000, 16)
    table = _first(table, count + validation)
    redrawn = redraw_labels(table.labels[:count], 0.5, classes, seed=1)
    training, clean = (
        LabelledData(table.features[:count], redrawn.labels),
        _first(table, count),
    )
    split, selection = _split(training, table, test, devices, partition, classes)
    # Per-example weights detect fewer wrong labels and give a worse model: results.md.
    start = jnp.zeros((classes, test.features.shape[1]))
    model = softmax(start, [split.validation], ridge=1e-2)
    make = partial(
        cleaning_network, model=np.asarray(model), ridge=1e-3, wrong=redrawn.wrong
    )
    return Case(make, split, selection, clean, 1e-3, 0.03, partition)


def adult(partition: Partition, fast: bool) -> Case:
    source = datasets.adult()
    rows = np.random.default_rng(0).permutation(len(source.train.labels))
    rows = rows[:2_000] if fast else rows
    table = take(source.train, rows)
    validation = len(rows) // 5
    devices = len(source.group_names)
    groups = source.train_groups[rows]
    natural = [np.flatnonzero(groups == group) for group in range(devices)]
    training, test = _first(table, len(rows) - validation), source.test
    split, selection = _split(training, table, test, devices, partition, 2, natural)
    make = partial(regularisation, penalty=1e-2)
    return Case(make, split, selection, None, 1e-2, 0.1, partition)


def newsgroups(partition: Partition, fast: bool) -> Case:
    table, test, classes = _shuffled(
        datasets.newsgroups(features=300 if fast else 1_000)
    )
    count, validation, devices = (1_000, 300, 4) if fast else (8_293, 3_000, 20)
    table = _first(table, count + validation)
    split, selection = _split(
        _first(table, count), table, test, devices, partition, classes
    )
    make = partial(regularisation, penalty=1e-3)
    return Case(make, split, selection, None, 1e-3, 0.3, partition)


def imbalance(partition: Partition, fast: bool) -> Case:
    table, test, classes = _shuffled(datasets.mnist())
    validation, devices = (200, 4) if fast else (1_000, 100)
    held_out = LabelledData(table.features[:validation], table.labels[:validation])
    rest = take(table, np.arange(validation, 3_000 if fast else 60_000))
    training = take(rest, long_tail(rest.labels, classes, ratio=100.0, seed=0))
    joined = LabelledData(
        *(np.concatenate([a, b]) for a, b in zip(training, held_out, strict=True))
    )
    split, selection = _split(training, joined, test, devices, partition, classes)

    def make(split: Split) -> Task:
        sizes = [len(rows) for rows in split.training_rows]
        return loss_tuning(split, ridge=1e-3, weights=sizes)

    return Case(make, split, selection, None, 1e-3, 0.03, partition)


def representation(partition: Partition, fast: bool) -> Case:
    table, test, classes = _shuffled(datasets.fashion_mnist())
    count, validation, devices = (600, 600, 4) if fast else (10_000, 10_000, 16)
    table = _first(table, count + validation)
    split, selection = _split(
        _first(table, count), table, test, devices, partition, classes
    )
    make = partial(hyper_representation, units=(16,) if fast else (32,), ridge=1e-2)
    return Case(make, split, selection, None, 1e-2, 0.01, partition)


CASES: dict[str, Callable[[Partition, bool], Case]] = {
    "cleaning-mnist": partial(cleaning, datasets.mnist),
    "cleaning-fashion": partial(cleaning, datasets.fashion_mnist),
    "regularisation-adult": adult,
    "regularisation-newsgroups": newsgroups,
    "imbalance-mnist": imbalance,
    "representation-fashion": representation,
}

SHARED = ("cleaning-mnist", "regularisation-adult", "representation-fashion")
"""Tasks that are also run with the partition `SHARED`."""


def partitions_of(name: str) -> tuple[Partition, ...]:
    """Return the partitions of a task, except that of one device."""
    usual = Partition.RANDOM, Partition.HETEROGENEOUS
    return (*usual, Partition.SHARED) if name in SHARED else usual


METRICS = {
    name: "balanced_accuracy" if name.startswith("imbalance") else "accuracy"
    for name in CASES
}


def _split(
    training: LabelledData,
    table: LabelledData,
    test: LabelledData,
    devices: int,
    scheme: Partition,
    classes: int,
    natural: list[np.ndarray] | None = None,
) -> tuple[Split, LabelledRows]:
    """Partition training and validation rows together; validation rows are last.

    So both sets of examples of a device have one distribution, as in practice.
    """
    count, total = len(training.labels), len(table.labels)
    total -= (total - count) // 5
    selection = LabelledRows(table.features[total:], table.labels[total:])
    table = _first(table, total)
    if natural is not None:
        natural = [rows[rows < total] for rows in natural]
    if scheme is not Partition.HETEROGENEOUS:
        rows = np.array_split(np.random.default_rng(2).permutation(total), devices)
    elif natural is not None:
        rows = natural
    else:
        partitioner = DirichletPartitioner(
            devices, "label", CONCENTRATION, min_partition_size=10, seed=3
        )
        rows = partition(partitioner, label=table.labels.astype(np.int64))
    validation = LabelledData(table.features[count:], table.labels[count:])
    split = Split(
        training,
        validation,
        test,
        fill_empty_parts([part[part < count] for part in rows]),
        fill_empty_parts([part[part >= count] - count for part in rows]),
        classes,
    )
    return split, selection


def _shuffled(source: datasets.DataSet) -> tuple[LabelledData, LabelledData, int]:
    rows = np.random.default_rng(0).permutation(len(source.train.labels))
    return take(source.train, rows), source.test, source.classes


def _first(table: LabelledData, count: int) -> LabelledData:
    return LabelledData(table.features[:count], table.labels[:count])
