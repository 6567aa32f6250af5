"""A labelled data set cut into training, validation and test, and who holds what."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedbilevel.data.devices import InMemoryDevices, LocalExamples
from fedbilevel.data.partitions import take
from fedbilevel.mathematics.problem import Batch


@runtime_checkable
class LabelledTable(Protocol):
    """A table of examples: whatever has features and labels, one row an example."""

    @property
    def features(self) -> Float[Array | np.ndarray, "examples features"]:
        """The inputs of a model."""

    @property
    def labels(self) -> Int[Array | np.ndarray, "examples"]:
        """The classes, counted from 0."""


class LabelledRows(NamedTuple):
    """Labelled examples as devices hold them and losses see them.

    Attributes:
        features: the inputs of a model.
        labels: the classes, counted from 0.

    Example:
        >>> import numpy as np
        >>> LabelledRows(np.ones((2, 3)), np.array([0, 1])).features.shape
        (2, 3)
    """

    features: Float[Array | np.ndarray, "examples features"]
    labels: Int[Array | np.ndarray, "examples"]


class Split(NamedTuple):
    """Three tables, and the rows of two of them that each device holds.

    `fedbilevel.data.partitions.partition` deals rows to devices in the field's usual
    ways; any lists of row numbers will do.

    Attributes:
        training: the examples of lower losses.
        validation: the examples of upper losses.
        test: the examples of metrics; the server holds them.
        training_rows: the rows of `training` that each device holds.
        validation_rows: the rows of `validation` that each device holds.
        classes: the number of classes; labels are 0 … classes − 1.

    Example:
        >>> import numpy as np
        >>> from fedbilevel.problems import LabelledRows, Split
        >>> table = LabelledRows(np.eye(4), np.array([0, 1, 0, 1]))
        >>> halves = [np.array([0, 1]), np.array([2, 3])]
        >>> Split(table, table, table, halves, halves, classes=2).classes
        2
    """

    training: LabelledTable
    validation: LabelledTable
    test: LabelledTable
    training_rows: Sequence[Int[np.ndarray, "_"]]
    validation_rows: Sequence[Int[np.ndarray, "_"]]
    classes: int


class SplitData(NamedTuple):
    """What a ready-made problem is built from.

    Attributes:
        split: the tables, and who holds what.
        wrong: which training labels are wrong; none if none were spoilt.
        weights: of devices, if they do not count alike.

    Example:
        >>> SplitData._fields
        ('split', 'wrong', 'weights')
    """

    split: Split
    wrong: Bool[np.ndarray, "examples"] | None
    weights: Sequence[int] | None = None


def tables(split: Split) -> tuple[LabelledRows, LabelledRows, LabelledRows]:
    """Return training, validation and test examples as losses see them, once checked.

    Raises:
        ValueError: if tables do not fit together, or lack rows that devices hold.

    Example:
        >>> import numpy as np
        >>> table = LabelledRows(np.eye(2), np.array([0, 2]))
        >>> rows = [np.array([0, 1])]
        >>> tables(Split(table, table, table, rows, rows, classes=2))
        Traceback (most recent call last):
        ...
        ValueError: a label of the training examples is 2, but classes=2 counts from 0
        to 1; renumber the labels or raise classes.
    """
    if split.classes < 2:
        raise ValueError(
            f"a split needs at least 2 classes, but classes={split.classes}."
        )
    training = _rows_of("training", split.training, split.classes)
    validation = _rows_of("validation", split.validation, split.classes)
    test = _rows_of("test", split.test, split.classes)
    width = training.features.shape[1]
    for name, table in (("validation", validation), ("test", test)):
        if table.features.shape[1] != width:
            raise ValueError(
                f"the {name} examples have {table.features.shape[1]} features, but the "
                f"training examples {width}; give all three tables the same features."
            )
    if len(split.training_rows) != len(split.validation_rows):
        raise ValueError(
            f"training_rows names {len(split.training_rows)} devices and "
            f"validation_rows {len(split.validation_rows)}; give both one array of "
            "rows a device."
        )
    _check_rows("training", split.training_rows, len(training.labels))
    _check_rows("validation", split.validation_rows, len(validation.labels))
    return training, validation, test


def deal(split: Split, *, training: Batch, validation: Batch) -> InMemoryDevices:
    """Return devices that hold their rows of these trees of arrays.

    Args:
        split: who holds which rows.
        training: one row a training example, for the lower loss.
        validation: one row a validation example, for the upper loss.

    Example:
        >>> import numpy as np
        >>> table = LabelledRows(np.eye(4), np.array([0, 1, 0, 1]))
        >>> rows = [np.array([0, 1, 2]), np.array([3])]
        >>> split = Split(table, table, table, rows, rows, classes=2)
        >>> deal(split, training=np.ones(4), validation=np.ones(4)).lower_sizes
        array([3, 1], dtype=int32)
    """
    pairs = zip(split.validation_rows, split.training_rows, strict=True)
    return InMemoryDevices(
        [
            LocalExamples(
                upper=take(validation, np.asarray(upper)),
                lower=take(training, np.asarray(lower)),
            )
            for upper, lower in pairs
        ]
    )


def _rows_of(name: str, table: LabelledTable, classes: int) -> LabelledRows:
    features, labels = np.asarray(table.features), np.asarray(table.labels)
    if features.ndim != 2 or not np.issubdtype(features.dtype, np.floating):
        raise ValueError(
            f"the features of the {name} examples have shape {features.shape} and "
            f"dtype {features.dtype}; give floating-point numbers, one row an example."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"the labels of the {name} examples have dtype {labels.dtype}; "
            "number the classes with integers from 0."
        )
    if labels.shape != (len(features),) or not len(labels):
        raise ValueError(
            f"the {name} examples have {len(features)} rows of features and labels of "
            f"shape {labels.shape}; give one label a row, and at least one row."
        )
    for label in (labels.min(), labels.max()):
        if not 0 <= label < classes:
            raise ValueError(
                f"a label of the {name} examples is {label}, but classes={classes} "
                f"counts from 0 to {classes - 1}; renumber the labels or raise classes."
            )
    return LabelledRows(features, labels.astype(np.int32))


def _check_rows(name: str, parts: Sequence[Int[np.ndarray, "_"]], count: int) -> None:
    for device, part in enumerate(parts):
        rows = np.asarray(part)
        for row in rows[(rows < 0) | (rows >= count)][:1]:
            raise ValueError(
                f"{name}_rows gives row {row} to device {device}, but the {name} "
                f"examples have rows 0 to {count - 1}."
            )
