"""Columns of a data set of the hub, as arrays of numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float32


def feature_columns(kinds: Mapping[str, Any], label: str) -> list[str]:
    """Return the columns of images, or else those of numbers, except the label.

    Args:
        kinds: of the columns, by name, as the library `datasets` tells them.
        label: the column that is none.

    Example:
        >>> from datasets import Value
        >>> kinds = {"age": Value("int64"), "name": Value("string")}
        >>> feature_columns(kinds, label="name")
        ['age']
    """
    others = {name: kind for name, kind in kinds.items() if name != label}
    images = [name for name, kind in others.items() if _is_image(kind)]
    return images or [name for name, kind in others.items() if _is_number(kind)]


def values_of(name: str, rows: Any) -> np.ndarray:
    """Return a column as it is.

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
    """Return a column of images or numbers, one row an example.

    Args:
        path: of the set, for the error message.
        name: of the column.
        rows: a split.

    Raises:
        ValueError: if the column is neither, or examples differ in size.

    Example:
        >>> from datasets import Dataset
        >>> numbers_of("mine", "age", Dataset.from_dict({"age": [20, 41]}))
        array([[20.],
               [41.]], dtype=float32)
    """
    kind = rows.features[name]
    if not (_is_image(kind) or _is_number(kind)):
        raise ValueError(
            f"the column {name!r} of {path} holds neither images nor numbers but "
            f"{kind}; choose other features, or make numbers of it and give arrays."
        )
    if _is_image(kind):
        values = [_pixels(image) for image in rows[name]]
    else:
        values = list(values_of(name, rows))
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        raise ValueError(
            f"the column {name!r} of {path} holds examples of different sizes, "
            f"{shapes[0]} and {shapes[1]}; make them equal and give arrays."
        )
    numbers = np.asarray(values, np.float32).reshape(len(values), -1)
    missing = int(np.isnan(numbers).any(axis=1).sum())
    if missing:
        raise ValueError(
            f"the column {name!r} of {path} has no value in {missing} examples; leave "
            "it out of features, or fill it and give arrays."
        )
    return numbers


def _pixels(image: Any) -> np.ndarray:
    # The numbers of a palette are no colours.
    pixels = np.asarray(image.convert("RGB") if image.mode == "P" else image)
    if pixels.dtype.kind != "u":  # black and white, or numbers in no known range
        return pixels.astype(np.float32)
    return pixels.astype(np.float32) / np.iinfo(pixels.dtype).max


def _is_image(kind: Any) -> bool:
    return type(kind).__name__ == "Image"


def _is_number(kind: Any) -> bool:
    """Whether a column holds numbers, or lists of them."""
    while hasattr(kind, "feature"):
        kind = kind.feature
    if hasattr(kind, "names"):  # classes, whose numbers are no quantities
        return False
    words = str(getattr(kind, "dtype", ""))
    return words.startswith(("int", "uint", "float", "bool"))
