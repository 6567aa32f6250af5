"""A labelled data set split into training, validation and test, and among devices."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.data.partitions import take
from fedbilevel.mathematics.problem import Batch
from fedbilevel.plurals import count_noun


@runtime_checkable
class LabelledTable(Protocol):
    """A table of examples: any object with features and labels, one row per example."""

    @property
    def features(self) -> Float[Array | np.ndarray, "examples features"]:
        """The inputs of a model."""

    @property
    def labels(self) -> Int[Array | np.ndarray, "examples"]:
        """The classes, from 0."""


class LabelledRows(NamedTuple):
    """Labelled examples as devices hold them and losses see them.

    Attributes:
        features: inputs of a model.
        labels: classes, from 0.
    """

    features: Float[Array | np.ndarray, "examples features"]
    labels: Int[Array | np.ndarray, "examples"]


class Split(NamedTuple):
    """Training, validation and test examples, with the rows of each device.

    `fedbilevel.data.partitions.partition` returns such rows; any lists of row numbers
    are allowed.

    Attributes:
        training: examples of the lower losses.
        validation: examples of the upper losses.
        test: examples of the metrics; the server holds them.
        training_rows: rows of `training` on each device.
        validation_rows: rows of `validation` on each device.
        classes: number of classes; labels are 0 … classes − 1.
        names: names of the devices, such as states or hospitals; None if they have
            none.
    """

    training: LabelledTable
    validation: LabelledTable
    test: LabelledTable
    training_rows: Sequence[Int[np.ndarray, "_"]]
    validation_rows: Sequence[Int[np.ndarray, "_"]]
    classes: int
    names: Sequence[str] | None = None


class SplitData(NamedTuple):
    """The data from which a ready-made problem is built.

    Attributes:
        split: tables, and the rows of each device.
        wrong: mask of the wrong training labels; None if no labels were corrupted.
        weights: weights of the devices; None if they are equal.
    """

    split: Split
    wrong: Bool[np.ndarray, "examples"] | None
    weights: Sequence[int] | None = None

    @property
    def names(self) -> Sequence[str] | None:
        """The names of the devices; None if they have none."""
        return self.split.names


def tables(split: Split) -> tuple[LabelledRows, LabelledRows, LabelledRows]:
    """Return training, validation and test examples after a check of the split.

    Raises:
        ValueError: if tables are inconsistent, or devices have rows beyond their end.

    Example:
        >>> import numpy as np
        >>> table = LabelledRows(np.eye(2), np.array([0, 2]))
        >>> rows = [np.array([0, 1])]
        >>> tables(Split(table, table, table, rows, rows, classes=2))
        Traceback (most recent call last):
        ...
        ValueError: A label of the training examples is 2, expected 0 to 1 with
        classes=2. Renumber the labels or raise classes.
    """
    if split.classes < 2:
        raise ValueError(f"Split: classes is {split.classes}, expected at least 2.")
    training = _rows_of("training", split.training, split.classes)
    validation = _rows_of("validation", split.validation, split.classes)
    test = _rows_of("test", split.test, split.classes)
    width = training.features.shape[1]
    for name, table in (("validation", validation), ("test", test)):
        if table.features.shape[1] != width:
            raise ValueError(
                f"The {name} examples have {table.features.shape[1]} features, but the "
                f"training examples have {width}. Use the same features in all tables."
            )
    if len(split.training_rows) != len(split.validation_rows):
        raise ValueError(
            f"training_rows has {count_noun(len(split.training_rows), 'device')}, but "
            f"validation_rows has {len(split.validation_rows)}. Pass one array of rows "
            "per device in both."
        )
    _check_rows("training", split.training_rows, len(training.labels))
    _check_rows("validation", split.validation_rows, len(validation.labels))
    return training, validation, test


def build_devices(
    split: Split, *, training: Batch, validation: Batch
) -> InMemoryDevices:
    """Return devices with their names and their rows of two trees of arrays.

    Args:
        split: rows of each device.
        training: arrays with one row per training example, for the lower loss.
        validation: arrays with one row per validation example, for the upper loss.

    Example:
        >>> import numpy as np
        >>> table = LabelledRows(np.eye(4), np.array([0, 1, 0, 1]))
        >>> rows = [np.array([0, 1, 2]), np.array([3])]
        >>> split = Split(table, table, table, rows, rows, classes=2)
        >>> ones = np.ones(4)
        >>> build_devices(split, training=ones, validation=ones).lower_sizes
        array([3, 1], dtype=int32)
    """
    pairs = zip(split.validation_rows, split.training_rows, strict=True)
    examples = [
        LocalExamples(
            upper=take(validation, np.asarray(upper)),
            lower=take(training, np.asarray(lower)),
        )
        for upper, lower in pairs
    ]
    if split.names is None:
        return InMemoryDevices(examples)
    return InMemoryDevices(dict(zip(split.names, examples, strict=True)))


def _rows_of(name: str, table: LabelledTable, classes: int) -> LabelledRows:
    features, labels = np.asarray(table.features), np.asarray(table.labels)
    if features.ndim != 2 or not np.issubdtype(features.dtype, np.floating):
        raise ValueError(
            f"The features of the {name} examples have shape {features.shape} and "
            f"dtype {features.dtype}. Pass floating-point numbers, one row per example."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"The labels of the {name} examples have dtype {labels.dtype}. "
            "Number the classes with integers from 0."
        )
    if labels.shape != (len(features),) or not len(labels):
        raise ValueError(
            f"The {name} examples have {len(features)} rows of features and labels of "
            f"shape {labels.shape}. Pass one label per row, and at least one row."
        )
    for label in (labels.min(), labels.max()):
        if not 0 <= label < classes:
            raise ValueError(
                f"A label of the {name} examples is {label}, expected 0 to "
                f"{classes - 1} with classes={classes}. Renumber the labels or raise "
                "classes."
            )
    return LabelledRows(features, labels.astype(np.int32))


def _check_rows(name: str, parts: Sequence[Int[np.ndarray, "_"]], count: int) -> None:
    for device, part in enumerate(parts):
        rows = np.asarray(part)
        for row in rows[(rows < 0) | (rows >= count)][:1]:
            raise ValueError(
                f"{name}_rows has row {row} for device {device}, but the {name} "
                f"examples have rows 0 to {count - 1}. Correct the row numbers."
            )
