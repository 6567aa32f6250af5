import hashlib
import struct
import sys

import numpy as np
import pytest

from fedbilevel.datasets import fashion_mnist, mnist
from fedbilevel.datasets.idx import parse_idx
from fedbilevel.datasets.mnist import FASHION_MNIST, _from_files, examples_from_rows
from fedbilevel.datasets.sources import File

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
LABELS = np.array([7, 0, 9], np.uint8)


def idx(array):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def rows(images, labels):
    """Return a split of the library `datasets`, with images stored as PNG."""
    import datasets

    columns = {"image": datasets.Image(), "label": datasets.ClassLabel(10)}
    features = datasets.Features(columns)
    table = {"image": list(images), "label": list(labels)}
    return datasets.Dataset.from_dict(table, features=features)


@pytest.mark.parametrize("array", [IMAGES, LABELS, LABELS[:0], IMAGES[:, :2]])
def test_idx_arrays_come_back(array):
    np.testing.assert_array_equal(parse_idx("mine", idx(array)), array, strict=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "mine is not an IDX file .* begins with nothing"),
        (b"\x1f\x8b\x08\x00", "begins with 1f 8b 08 00, expected 00 00 08"),
        (b"\x00\x00\x0d\x01" + bytes(8), "begins with 00 00 0d 01"),
        (idx(IMAGES)[:9], "mine ends within its header"),
        (idx(LABELS)[:-1], r"mine has 2 bytes .* shape \(3,\) needs 3"),
        (idx(LABELS) + b"\x00", r"mine has 4 bytes .* shape \(3,\) needs 3"),
    ],
)
def test_other_content_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parse_idx("mine", content)


def test_images_are_scaled_and_flattened_row_by_row():
    data = _from_files(
        {
            "train-images-idx3-ubyte": idx(IMAGES),
            "train-labels-idx1-ubyte": idx(LABELS),
            "t10k-images-idx3-ubyte": idx(IMAGES[1:]),
            "t10k-labels-idx1-ubyte": idx(LABELS[1:]),
        }
    )
    expected = IMAGES.reshape(3, 784) / np.float32(255)
    np.testing.assert_array_equal(data.train.features, expected, strict=True)
    np.testing.assert_array_equal(data.test.features, expected[1:], strict=True)
    np.testing.assert_array_equal(data.train.labels, np.array([7, 0, 9], np.int32))
    assert data.train.labels.dtype == np.int32
    assert data.test.labels.tolist() == [0, 9]
    assert data.classes == 10


def published(images, labels):
    arrays = {"images": images, "labels": np.asarray(labels).astype(np.uint8)}
    return [
        File(name, hashlib.sha256(idx(array)).hexdigest())
        for name, array in arrays.items()
    ]


def test_rows_of_the_hub_give_what_the_files_give():
    files = published(IMAGES, LABELS)
    got = examples_from_rows("mine", rows(IMAGES, LABELS), 3, files)
    expected = IMAGES.reshape(3, 784) / np.float32(255)
    np.testing.assert_array_equal(got.features, expected, strict=True)
    np.testing.assert_array_equal(got.labels, LABELS.astype(np.int32), strict=True)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:2], LABELS[:2], r"mine: images are uint8 of shape \(2, 28, 28\)"),
        (IMAGES[:, :5], LABELS, r"shape \(3, 5, 28\), expected .* \(3, 28, 28\)"),
        (np.stack([IMAGES] * 3, axis=-1), LABELS, r"shape \(3, 28, 28, 3\)"),
        (IMAGES, [-1, 0, 1], "mine: labels range from -1 to 1"),
    ],
)
def test_other_rows_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        examples_from_rows("mine", rows(images, labels), 3, published(images, labels))


@pytest.mark.parametrize("what", ["images", "labels"])
def test_rows_that_somebody_has_changed_on_the_hub_are_refused(what):
    images, labels = IMAGES.copy(), LABELS.copy()
    (images if what == "images" else labels).flat[0] ^= 1
    with pytest.raises(
        ValueError, match=f"mine differs from the published {what}: .*directory"
    ):
        examples_from_rows("mine", rows(images, labels), 3, published(IMAGES, LABELS))


@pytest.mark.parametrize(
    ("load", "repository"),
    [(mnist, "ylecun/mnist"), (fashion_mnist, "zalando-datasets/fashion_mnist")],
)
def test_the_hub_must_have_all_rows(load, repository, tmp_path, monkeypatch):
    def load_dataset(name):
        assert name == repository
        return {"train": rows(IMAGES, LABELS), "test": rows(IMAGES, LABELS)}

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDBILEVEL_DATA", raising=False)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    # The package's attribute of this name is the function.
    module = sys.modules["fedbilevel.datasets.mnist"]
    elsewhere = FASHION_MNIST._replace(system_directories=())
    monkeypatch.setattr(module, "FASHION_MNIST", elsewhere)
    with pytest.raises(ValueError, match=rf"{repository}, train: .* \(60000,"):
        load()


@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_other_files_under_the_same_names_are_refused(load, tmp_path):
    for name in ("train-images-idx3", "t10k-images-idx3"):
        (tmp_path / f"{name}-ubyte").write_bytes(idx(IMAGES))
    for name in ("train-labels-idx1", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte").write_bytes(idx(LABELS))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte differs from the"):
        load(tmp_path)
