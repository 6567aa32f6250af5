"""The published files, if `python -m benchmarks.fetch_data` has downloaded them."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedbilevel import datasets
from fedbilevel.datasets import adult, fashion_mnist, mnist, newsgroups

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[2] / ".data"


def fetched(name):
    directory = DATA / name
    if not directory.is_dir():
        pytest.skip(f"run: python -m benchmarks.fetch_data {name}")
    return directory


def assert_parts(data, train, test, features):
    assert data.train.features.shape == (train, features)
    assert data.test.features.shape == (test, features)
    for part in data[:2]:
        assert part.labels.shape == part.features.shape[:1]
        assert part.features.dtype == np.float32
        assert part.labels.dtype == np.int32
        assert part.features.min() == 0


def test_mnist():
    data = mnist(fetched("mnist"))
    assert_parts(data, 60_000, 10_000, 784)
    assert data.train.features.max() == data.test.features.max() == 1
    # The published counts of the set, and its published mean grey level 0.1307.
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.train.labels).tolist() == counts
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(data.test.labels).tolist() == counts
    assert data.train.features.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)


def test_fashion_mnist():
    data = fashion_mnist(fetched("fashion_mnist"))
    assert_parts(data, 60_000, 10_000, 784)
    assert data.train.features.max() == data.test.features.max() == 1
    assert np.bincount(data.train.labels).tolist() == [6_000] * 10
    assert np.bincount(data.test.labels).tolist() == [1_000] * 10
    assert data.train.features.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)


def digest(part, groups):
    rows = np.column_stack([part.features, part.labels, groups]).astype(np.uint8)
    return hashlib.sha256(rows.tobytes()).hexdigest()


def test_adult():
    data = adult(fetched("adult"))
    assert_parts(data, 32_561, 16_281, 109)
    assert set(np.unique(data.train.features)) == {0, 1}
    assert np.bincount(data.train.labels).tolist() == [24_720, 7_841]
    assert np.bincount(data.test.labels).tolist() == [12_435, 3_846]
    sizes = np.bincount(data.train_groups)
    assert dict(zip(data.group_names, sizes.tolist(), strict=True)) == {
        "Tech-support": 928,
        "Craft-repair": 4_099,
        "Other-service": 3_295,
        "Sales": 3_650,
        "Exec-managerial": 4_066,
        "Prof-specialty": 4_140,
        "Handlers-cleaners": 1_370,
        "Machine-op-inspct": 2_002,
        "Adm-clerical": 3_770,
        "Farming-fishing": 994,
        "Transport-moving": 1_597,
        "Priv-house-serv": 149,
        "Protective-serv": 649,
        "Armed-Forces": 9,
        "?": 1_843,
    }


def test_adult_is_a9a_without_the_occupation():
    data = adult(fetched("adult"))
    # Digests of LIBSVM's files a9a and a9a.t: as bytes, the features except 47 to 60,
    # the label (1 for +1), and the index set among 47 to 60 (0 to 13, or 14 for none).
    a9a = "9ce62a91c6ffe35fb7cd44e7549ed49e8a8b29ca9325933616f6ecbcd5702a57"
    a9a_t = "2c00cfa2eaf73b08809ef0a7ba71309e15b1840840b6cfee2cd835d1f705fadc"
    assert digest(data.train, data.train_groups) == a9a
    assert digest(data.test, data.test_groups) == a9a_t


@pytest.mark.nightly
def test_newsgroups():
    data = newsgroups(fetched("newsgroups"))
    assert_parts(data, 11_293, 7_528, 2_000)
    assert data.classes == 20
    counts = np.bincount(data.train.labels)
    assert len(counts) == len(np.bincount(data.test.labels)) == 20
    # alt.atheism is the first of the groups, talk.religion.misc the last.
    assert (counts[0], counts[19], counts.min(), counts.max()) == (480, 377, 377, 600)
    for part in data[:2]:
        lengths = np.linalg.norm(part.features, axis=1)
        empty = lengths == 0
        assert empty.mean() < 0.001
        np.testing.assert_allclose(lengths[~empty], 1, rtol=1e-5)


NAMES = {
    "fars": "District of Columbia",
    "flights": "United Air Lines Inc.",
    "azpro": "3.6",
    "hsb82": "1224",
    "mpls_stops": "Cedar Riverside",
    "contraception": "1",
    "covid_testing": "clinical lab",
}
"""A site of each data set with natural sites."""


@pytest.mark.parametrize(
    ("name", "rows", "features", "sizes", "positive"),
    # Rows, sites with their smallest, median and largest sizes, and rows of class 1.
    [
        ("fars", 100_968, 100, (51, 190, 1_538, 10_151), 42_116),
        pytest.param(
            *("flights", 327_346, 173, (16, 29, 14_669, 57_782), 77_630),
            marks=pytest.mark.nightly,
        ),
        ("azpro", 3_589, 8, (17, 17, 152, 535), 1_607),
        ("hsb82", 7_185, 16, (160, 14, 47, 67), 3_591),
        ("mpls_stops", 43_699, 65, (87, 9, 308, 2_932), 5_237),
        ("contraception", 1_934, 11, (60, 2, 26, 118), 759),
        ("covid_testing", 15_223, 39, (88, 1, 13, 7_402), 865),
    ],
)
def test_sets_with_natural_sites(name, rows, features, sizes, positive):
    data = getattr(datasets, name)(fetched(name))
    groups = np.concatenate([data.train_groups, data.test_groups])
    labels = np.concatenate([data.train.labels, data.test.labels])
    counts = np.bincount(groups)
    assert len(groups) == len(labels) == rows
    assert labels.sum() == positive
    assert NAMES[name] in data.group_names
    got = counts.min(), np.median(counts), counts.max()
    assert (len(data.group_names), *got) == sizes
    tests = np.bincount(data.test_groups, minlength=len(counts))
    np.testing.assert_array_equal(tests, counts // 5)
    assert_parts(data, rows - tests.sum(), tests.sum(), features)
    assert data.train.features.max() == 1
    # Each feature occurs in a training example, and so none is constantly 0.
    assert data.train.features.any(axis=0).all()
