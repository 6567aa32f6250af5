"""Columns of a Hugging Face data set as arrays of numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float32


def feature_columns(types: Mapping[str, Any], label: str) -> list[str]:
    """Return the image columns, or if there are none the numeric columns.

    Args:
        types: type of each column by name, as in `Dataset.features` of `datasets`.
        label: name of the label column, which is excluded.

    Example:
        >>> from datasets import Value
        >>> types = {"age": Value("int64"), "name": Value("string")}
        >>> feature_columns(types, label="name")
        ['age']
    """
    others = {name: type_ for name, type_ in types.items() if name != label}
    images = [name for name, type_ in others.items() if _is_image(type_)]
    return images or [name for name, type_ in others.items() if _is_number(type_)]


def values_of(name: str, rows: Any) -> np.ndarray:
    """Return the values of a column, unchanged.

    Example:
        >>> from datasets import Dataset
        >>> values_of("age", Dataset.from_dict({"age": [20, 41]}))
        array([20, 41])
    """
    values: np.ndarray = rows.select_columns([name]).with_format("numpy")[:][name]
    return np.asarray(values)


def numbers_of(
    path: str, name: str, rows: Any
) -> Float32[np.ndarray, "examples numbers"]:
    """Return a column of images or numbers as an array with one row per example.

    Args:
        path: path of the data set, for the error message.
        name: name of the column.
        rows: split of the data set.

    Raises:
        ValueError: if the column has another type, missing values, or examples of
            different sizes.

    Example:
        >>> from datasets import Dataset
        >>> numbers_of("mine", "age", Dataset.from_dict({"age": [20, 41]}))
        array([[20.],
               [41.]], dtype=float32)
    """
    type_ = rows.features[name]
    if not (_is_image(type_) or _is_number(type_)):
        raise ValueError(
            f"{path}: column {name!r} has type {type_}, expected images or numbers. "
            "Choose other features, or convert the column and pass arrays."
        )
    if _is_image(type_):
        values = [_pixels(image) for image in rows[name]]
    else:
        values = list(values_of(name, rows))
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        raise ValueError(
            f"{path}: column {name!r} has examples of different sizes, {shapes[0]} "
            f"and {shapes[1]}. Resize the examples and pass arrays."
        )
    numbers = np.asarray(values, np.float32).reshape(len(values), -1)
    missing = int(np.isnan(numbers).any(axis=1).sum())
    if missing:
        raise ValueError(
            f"{path}: column {name!r} has missing values in {missing} "
            f"example{'' if missing == 1 else 's'}. Remove it from features, or fill "
            "the values and pass arrays."
        )
    return numbers


def _pixels(image: Any) -> np.ndarray:
    # Pixels of mode "P" are indices into a palette, not colours.
    pixels = np.asarray(image.convert("RGB") if image.mode == "P" else image)
    if pixels.dtype.kind != "u":  # booleans, or numbers of unknown range
        return pixels.astype(np.float32)
    return pixels.astype(np.float32) / np.iinfo(pixels.dtype).max


def _is_image(type_: Any) -> bool:
    return type(type_).__name__ == "Image"


def _is_number(type_: Any) -> bool:
    """Return whether a column holds numbers or lists of numbers."""
    while hasattr(type_, "feature"):
        type_ = type_.feature
    if hasattr(type_, "names"):  # class numbers are not quantities
        return False
    dtype = str(getattr(type_, "dtype", ""))
    return dtype.startswith(("int", "uint", "float", "bool"))
