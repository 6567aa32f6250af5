"""From what an experiment asks for to what `run` takes."""

import runpy
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fedbilevel import datasets
from fedbilevel.data.devices import InMemoryDevices
from fedbilevel.data.partition import partition
from fedbilevel.datasets.table import Labelled
from fedbilevel.experiments.choices import (
    Cleaning,
    Data,
    Experiment,
    LossTuning,
    Own,
    Partition,
    Regularisation,
    Representation,
)
from fedbilevel.experiments.finite import require_finite
from fedbilevel.problems.hyper_cleaning import hyper_cleaning
from fedbilevel.problems.hyper_representation import hyper_representation
from fedbilevel.problems.imbalance import long_tail
from fedbilevel.problems.label_noise import redraw_labels
from fedbilevel.problems.loss_tuning import loss_tuning
from fedbilevel.problems.regularisation import regularisation
from fedbilevel.problems.split import Split
from fedbilevel.problems.task import Task


class Dealt(NamedTuple):
    """Examples, and which training labels were spoilt.

    Attributes:
        split: the tables, and who holds what.
        wrong: which training labels are wrong; none if none were spoilt.

    Example:
        >>> Dealt._fields
        ('split', 'wrong')
    """

    split: Split
    wrong: Bool[np.ndarray, "examples"] | None


def task_of(experiment: Experiment) -> Task:
    """Return the problem with its data.

    Example:
        >>> from fedbilevel import FedBiO
        >>> task_of(Experiment(FedBiO(0.1))).devices.device_count
        8
    """
    task = _task_of(experiment)
    require_finite(task.devices)
    return task


def _task_of(experiment: Experiment) -> Task:
    problem = experiment.problem
    if isinstance(problem, Own):
        return _own(problem.file)
    split, wrong = deal(experiment.data, experiment.partition)
    match problem:
        case Regularisation(penalty):
            return regularisation(split, penalty=penalty)
        case Cleaning(ridge):
            return hyper_cleaning(split, ridge=ridge, wrong=wrong)
        case LossTuning(ridge):
            return loss_tuning(split, ridge=ridge)
        case Representation(units, ridge):
            return hyper_representation(split, units=units, ridge=ridge)


def deal(data: Data, held: Partition) -> Dealt:
    """Return examples dealt to devices.

    Example:
        >>> split, _ = deal(Data(training=100, validation=50), Partition(devices=3))
        >>> [len(rows) for rows in split.training_rows]
        [30, 36, 34]
    """
    source = getattr(datasets, data.name)()
    generator = np.random.default_rng(data.seed)
    order = generator.permutation(len(source.train.labels))
    table = _rows(source.train, order)
    validation = data.validation or max(1, len(order) // 5)
    training = data.training or len(order) - validation
    if training + validation > len(order):
        raise ValueError(
            f"data.training and data.validation ask for {training} + {validation} "
            f"examples, but {data.name} has {len(order)}."
        )
    if held.devices > min(training, validation):
        raise ValueError(
            f"partition.devices asks for {held.devices} devices, each with examples of "
            f"both kinds, but there are {training} for training and {validation} for "
            "validation; ask for fewer devices or more examples."
        )
    table = _rows(table, np.arange(training + validation))
    wrong = None
    kept = np.arange(training)
    if data.tail > 1:
        kept = long_tail(table.labels[:training], source.classes, data.tail, data.seed)
    lower = _rows(table, kept)
    if data.noise:
        redrawn = redraw_labels(lower.labels, data.noise, source.classes, data.seed)
        lower, wrong = Labelled(lower.features, redrawn.labels), redrawn.wrong
    upper = _rows(table, np.arange(training, training + validation))
    both = np.concatenate([lower.labels, upper.labels])
    rows = _without_nobody(_deal(both, held))
    count = len(lower.labels)
    return Dealt(
        Split(
            lower,
            upper,
            source.test,
            _without_nobody([part[part < count] for part in rows]),
            _without_nobody([part[part >= count] - count for part in rows]),
            source.classes,
        ),
        wrong,
    )


def _deal(
    labels: Int[np.ndarray, "examples"], held: Partition
) -> list[Int[np.ndarray, "_"]]:
    if held.concentration is None:
        order = np.random.default_rng(held.seed).permutation(len(labels))
        return list(np.array_split(order, held.devices))
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        held.devices, "label", held.concentration, min_partition_size=1, seed=held.seed
    )
    return partition(partitioner, seed=held.seed, label=labels.astype(np.int64))


def _without_nobody(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Let devices without a row have one of the device that has most."""
    parts = list(parts)
    for device in [k for k, part in enumerate(parts) if not len(part)]:
        richest = int(np.argmax([len(part) for part in parts]))
        parts[device], parts[richest] = parts[richest][:1], parts[richest][1:]
    return parts


def _rows(table: Labelled, rows: Int[np.ndarray, "_"]) -> Labelled:
    return Labelled(table.features[rows], table.labels[rows])


def _own(file: Path) -> Task:
    if not file.exists():
        raise ValueError(f"problem.file: there is no {file}.")
    try:
        names: dict[str, Any] = runpy.run_path(str(file))
        make = names.get("task")
        made = make() if callable(make) else None
    except Exception as error:
        raise ValueError(f"problem.file: {_place(error, file)}") from error
    if not callable(make):
        raise ValueError(
            f"problem.file: {file} has no function task(); fedbilevel new shows one."
        )
    if not isinstance(made, Task):
        raise ValueError(
            f"problem.file: task() of {file} returned a {type(made).__name__}; return "
            "a fedbilevel.problems.Task."
        )
    if not isinstance(made.devices, InMemoryDevices):
        raise ValueError(
            f"problem.file: the devices of {file} are a {type(made.devices).__name__}; "
            "give fedbilevel.InMemoryDevices."
        )
    return made


def _place(error: Exception, file: Path) -> str:
    """Return what went wrong in a file, and in which line of it."""
    if isinstance(error, SyntaxError):
        return f"{file}, line {error.lineno}: {error.msg}."
    lines = [
        one.lineno
        for one in traceback.extract_tb(error.__traceback__)
        if one.filename == str(file)
    ]
    where = f", line {lines[-1]}" if lines else ""
    return f"{file}{where}: {type(error).__name__}: {error}"
