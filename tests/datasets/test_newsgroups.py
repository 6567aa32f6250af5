import sys

import numpy as np
import pytest

from fedbilevel.datasets import newsgroups
from fedbilevel.datasets.newsgroups import Texts, parse_tab, tf_idf

HEADER = b"Category\tText\nd\tstring\nclass\t\n"


def test_texts_and_categories_are_read():
    got = parse_tab("mine", HEADER + b"\nb.c\tone two\na\tthree\n")
    assert got == Texts(["b.c", "a"], ["one two", "three"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"mine begins with \[''\], expected the lines"),
        (b"a\tone\n", r"mine begins with \['a"),
        (HEADER + b"a one\n", "mine: a line begins with 'a one' and has 0 tabs"),
        (HEADER + b"a\tone\ttwo\n", "mine: a line begins with 'a' and has 2 tabs"),
    ],
)
def test_other_files_are_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parse_tab("mine", content)


def test_weights_are_worked_out_from_the_training_texts():
    train = Texts(["pets", "fish"], ["cat dog cat", "dog eel cat cat x"])
    test = Texts(["pets", "pets"], ["eel dog cat bird", "bird"])
    data = tf_idf(train, test, features=2)
    # cat occurs 4 times, dog twice, eel once; "x" is too short to be a word. The two
    # most frequent words are in both texts: each has the weight 1 + log(3 / 3) = 1.
    expected = np.array([[2, 1], [2, 1]]) / np.sqrt(5)
    np.testing.assert_allclose(data.train.features, expected, rtol=1e-6)
    expected = np.array([[1, 1], [0, 0]]) / np.sqrt(2)
    np.testing.assert_allclose(data.test.features, expected, rtol=1e-6)
    assert data.train.features.dtype == data.test.features.dtype == np.float32
    np.testing.assert_array_equal(data.train.labels, np.array([1, 0], np.int32))
    np.testing.assert_array_equal(data.test.labels, np.array([1, 1], np.int32))
    assert data.train.labels.dtype == np.int32
    assert data.classes == 2


def test_a_rare_word_weighs_more():
    train = Texts(["a", "b", "b"], ["cat dog", "dog", "dog dog"])
    data = tf_idf(train, Texts(["a"], ["dog cat cat"]), features=9)
    # cat is in 1 of 3 texts, dog in 3 of 3.
    row = np.array([2 * (1 + np.log(4 / 2)), 1 + np.log(4 / 4)])
    expected = row[None] / np.linalg.norm(row)
    np.testing.assert_allclose(data.test.features, expected, rtol=1e-6)


def test_without_scikit_learn_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    texts = Texts(["a"], ["cat"])
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        tf_idf(texts, texts, features=1)


def test_another_file_under_the_same_name_is_refused(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"20newsgroups-{name}.tab").write_bytes(HEADER + b"a\tone\n")
    with pytest.raises(ValueError, match=r"20newsgroups-train\.tab differs from the"):
        newsgroups(tmp_path)
