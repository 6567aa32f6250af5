"""Load any data set of images or numbers from the Hugging Face hub."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from jaxtyping import Float32, Int32

from fedbilevel.datasets.columns import feature_columns, numbers_of, values_of
from fedbilevel.datasets.groups import groups_of
from fedbilevel.datasets.table import DataSet, GroupedDataSet, LabelledData
from fedbilevel.extras import needs
from fedbilevel.nearest import nearest


@overload
def hub(
    path: str,
    *,
    features: Sequence[str] | None = None,
    label: str = "label",
    splits: tuple[str, str] = ("train", "test"),
    by: None = None,
) -> DataSet: ...


@overload
def hub(
    path: str,
    *,
    features: Sequence[str] | None = None,
    label: str = "label",
    splits: tuple[str, str] = ("train", "test"),
    by: str,
) -> GroupedDataSet: ...


def hub(
    path: str,
    *,
    features: Sequence[str] | None = None,
    label: str = "label",
    splits: tuple[str, str] = ("train", "test"),
    by: str | None = None,
) -> DataSet | GroupedDataSet:
    """Return a data set of the Hugging Face hub, or its copy in a directory, as arrays.

    Images are flattened to one row each and scaled to [0, 1]; numbers are unchanged;
    lists of numbers are concatenated. Labels become classes from 0: with the numbers
    of the data set if it has class names, otherwise in the order of their values.

    Args:
        path: name of a data set on the hub, or a directory in the hub's layout.
        features: columns of images or numbers; by default all image columns, or if
            there are none all numeric columns except the label.
        label: column with the class of each example.
        splits: training and test split, in the syntax of the library `datasets`. For a
            data set without a test split: `("train[:80%]", "train[80%:]")`.
        by: column whose values are the groups, such as "writer_id"; None for a data
            set without groups. It is no feature, unless `features` has it.

    Returns:
        The set: a `GroupedDataSet` with `by`, otherwise a `DataSet`.

    Raises:
        ImportError: if the library `datasets` is not installed.
        FileNotFoundError: if the data set does not exist or the hub is unreachable.
        ValueError: if a column is missing or cannot be converted to numbers.

    Example:
        >>> import os, tempfile
        >>> from datasets import Dataset
        >>> directory = tempfile.mkdtemp()
        >>> rows = Dataset.from_dict({"age": [20, 41], "paid": ["no", "yes"]})
        >>> for split in ("train", "test"):
        ...     file = f"{directory}/data/{split}-00000-of-00001.parquet"
        ...     _ = rows.to_parquet(file)
        >>> hub(directory, label="paid").train
        LabelledData(features=array([[20.], [41.]], dtype=float32),
                 labels=array([0, 1], dtype=int32))
    """
    parts = _parts(path, list(splits))
    types = parts[0].features
    for name in (label, *([by] if by else ()), *(features or ())):
        if name not in types:
            raise ValueError(f"{path} has no column {name!r}; {nearest(name, types)}")
    inputs = {name: type_ for name, type_ in types.items() if name != by}
    columns = tuple(features or feature_columns(inputs, label))
    if not columns:
        raise ValueError(
            f"{path} has no column of images or numbers except the label {label!r}; "
            f"its columns are {', '.join(types)}. Pass features=[...] or another label."
        )
    labels, classes = _classes(path, label, parts)
    train, test = (
        LabelledData(_features(path, columns, part), part_labels)
        for part, part_labels in zip(parts, labels, strict=True)
    )
    if train.features.shape[1] != test.features.shape[1]:
        raise ValueError(
            f"{path}: examples have {train.features.shape[1]} numbers in {splits[0]}, "
            f"but {test.features.shape[1]} in {splits[1]}. Choose other features."
        )
    if by is None:
        return DataSet(train, test, classes)
    values = [_group_values(by, rows) for rows in parts]
    groups, names = groups_of(values[0] + values[1], by)
    count = len(values[0])
    return GroupedDataSet(train, test, classes, groups[:count], groups[count:], names)


def _group_values(by: str, rows: Any) -> list[Any]:
    names = getattr(rows.features[by], "names", None)
    values: list[Any] = list(rows[by])
    return values if names is None else [names[value] for value in values]


def _parts(path: str, splits: list[str]) -> list[Any]:
    with needs(
        "Data sets of the Hugging Face hub",
        "the library `datasets`",
        "'fedbilevel[partition]'",
    ):
        from datasets import load_dataset
    try:
        parts: list[Any] = load_dataset(path, split=splits)
    except Exception as error:
        if isinstance(error, ValueError) and "split" in str(error):
            raise ValueError(
                f"{path} has no splits {splits} ({error}). Pass other splits=(...)."
            ) from error
        # A copy in a directory works around all other errors.
        raise FileNotFoundError(
            f"{path} cannot be loaded ({type(error).__name__}: {error}). On a machine "
            f"with access to the hub, run `hf download {path} --repo-type dataset "
            "--local-dir DIRECTORY` and pass that directory as the path."
        ) from error
    return parts


def _features(
    path: str, columns: Sequence[str], rows: Any
) -> Float32[np.ndarray, "examples features"]:
    parts = [numbers_of(path, name, rows) for name in columns]
    return np.concatenate(parts, axis=1)


def _classes(
    path: str, label: str, parts: Sequence[Any]
) -> tuple[list[Int32[np.ndarray, "_"]], int]:
    """Return the class of each example of each part, and the number of classes."""
    type_ = parts[0].features[label]
    values = [values_of(label, rows) for rows in parts]
    names = getattr(type_, "names", None)
    known: Any = np.arange(len(names)) if names else np.unique(np.concatenate(values))
    if known.dtype.kind == "f" or values[0].ndim > 1:
        raise ValueError(
            f"{path}: label column {label!r} has type {type_}, expected classes, "
            "strings or integers. Choose another label."
        )
    unknown = sorted(set(np.unique(np.concatenate(values))) - set(known))
    if unknown:
        raise ValueError(
            f"{path}: label column {label!r} has the class {unknown[0]}, which has no "
            "name: these examples have no label. Choose splits with labels."
        )
    labels = [np.searchsorted(known, part).astype(np.int32) for part in values]
    return labels, len(known)
