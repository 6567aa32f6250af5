"""Any data set of images or numbers in the layout of the Hugging Face hub."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from fedbilevel.datasets.columns import feature_columns, numbers_of, values_of
from fedbilevel.datasets.table import DataSet, Labelled
from fedbilevel.nearest import nearest


def hub(
    path: str,
    *,
    features: Sequence[str] | None = None,
    label: str = "label",
    splits: tuple[str, str] = ("train", "test"),
) -> DataSet:
    """Return a data set of the hub, or a copy of one in a directory, as arrays.

    Images become one row each, scaled to [0, 1]; numbers stay as they are; lists of
    numbers are laid side by side. Labels become classes from 0: as the set numbers
    them, or, where it does not, in the order of their values.

    Args:
        path: the name of a set on the hub, or a directory in the hub's layout.
        features: columns that are images or numbers; by default the images if there
            are any, or else all numbers except the label.
        label: the column with the class of each example.
        splits: of training and of test, in the words of the library `datasets`: of a
            set without a test split, `("train[:80%]", "train[80%:]")`.

    Returns:
        The set.

    Raises:
        ImportError: if the library `datasets` is not installed.
        FileNotFoundError: if there is no such set, or the hub cannot be reached.
        ValueError: if a column is not there, or cannot become numbers.

    Example:
        >>> import os, tempfile
        >>> from datasets import Dataset
        >>> directory = tempfile.mkdtemp()
        >>> rows = Dataset.from_dict({"age": [20, 41], "paid": ["no", "yes"]})
        >>> for split in ("train", "test"):
        ...     file = f"{directory}/data/{split}-00000-of-00001.parquet"
        ...     _ = rows.to_parquet(file)
        >>> hub(directory, label="paid").train
        Labelled(features=array([[20.], [41.]], dtype=float32),
                 labels=array([0, 1], dtype=int32))
    """
    parts = _parts(path, list(splits))
    kinds = parts[0].features
    for name in (label, *(features or ())):
        if name not in kinds:
            raise ValueError(f"{path} has no column {name!r}; {nearest(name, kinds)}")
    chosen = tuple(features or feature_columns(kinds, label))
    if not chosen:
        raise ValueError(
            f"{path} has no column of images or numbers besides {label!r}; it has "
            f"{', '.join(kinds)}."
        )
    labels, classes = _classes(path, label, parts)
    train, test = (
        Labelled(_features(path, chosen, part), numbered)
        for part, numbered in zip(parts, labels, strict=True)
    )
    if train.features.shape[1] != test.features.shape[1]:
        raise ValueError(
            f"{path} has {train.features.shape[1]} numbers an example in {splits[0]}, "
            f"but {test.features.shape[1]} in {splits[1]}; choose other columns."
        )
    return DataSet(train, test, classes)


def _parts(path: str, splits: list[str]) -> list[Any]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "data sets of the hub need the library `datasets`; run: "
            "pip install 'fedbilevel[partition]'"
        ) from error
    try:
        parts: list[Any] = load_dataset(path, split=splits)
    except Exception as error:
        if isinstance(error, ValueError) and "split" in str(error):
            raise ValueError(f"{path} does not have these splits: {error}") from error
        # Whatever else is wrong, a copy in a directory is the way around it.
        raise FileNotFoundError(
            f"{path} cannot be loaded ({type(error).__name__}: {error}); where the hub "
            f"can be reached, run `hf download {path} --repo-type dataset --local-dir "
            "DIRECTORY`, and give that directory for the path."
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
    """Return the class of each example of each part, and how many there are."""
    kind = parts[0].features[label]
    values = [values_of(label, rows) for rows in parts]
    names = getattr(kind, "names", None)
    known: Any = np.arange(len(names)) if names else np.unique(np.concatenate(values))
    if known.dtype.kind == "f" or values[0].ndim > 1:
        raise ValueError(
            f"the column {label!r} of {path} has no classes but {kind}; choose a label "
            "of classes, words or whole numbers."
        )
    wrong = [one for one in np.unique(np.concatenate(values)) if one not in known]
    if wrong:
        raise ValueError(
            f"the column {label!r} of {path} has the class {wrong[0]}, which has no "
            "name: examples without a label; choose splits that have labels."
        )
    return [np.searchsorted(known, one).astype(np.int32) for one in values], len(known)
