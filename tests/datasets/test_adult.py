import numpy as np
import pytest

from fedbilevel.datasets import adult
from fedbilevel.datasets.adult import parse_table
from fedbilevel.datasets.one_hot import Category, Number

# The first four people of the published table, and one with unknown values.
PEOPLE = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, \
White, Male, 2174, 0, 40, United-States, <=50K
50, Self-emp-not-inc, 83311, Bachelors, 13, Married-civ-spouse, Exec-managerial, \
Husband, White, Male, 0, 0, 13, United-States, <=50K
38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, Not-in-family, White, \
Male, 0, 0, 40, United-States, <=50K
53, Private, 234721, 11th, 7, Married-civ-spouse, Handlers-cleaners, Husband, Black, \
Male, 0, 0, 40, United-States, <=50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, \
Male, 0, 1902, 60, ?, >50K
"""
# The features of these people in a9a, from 1; 47 to 60 are occupations. The fifth row
# was computed by hand in a9a's order.
A9A = [
    [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83],
    [5, 7, 14, 19, 39, 40, 51, 63, 67, 73, 74, 76, 78, 83],
    [3, 6, 17, 22, 36, 41, 53, 64, 67, 73, 74, 76, 80, 83],
    [5, 6, 17, 21, 35, 40, 53, 63, 71, 73, 74, 76, 80, 83],
    [5, 16, 20, 37, 40, 63, 68, 73, 74, 77, 82],
]


def expected_features():
    a9a = np.zeros((len(A9A), 123), np.float32)
    for row, ones in zip(a9a, A9A, strict=True):
        row[np.array(ones) - 1] = 1
    return np.delete(a9a, range(46, 60), axis=1)


def test_people_are_encoded_as_in_a9a_without_their_occupation():
    examples, groups = parse_table("mine", PEOPLE.encode())
    np.testing.assert_array_equal(examples.features, expected_features(), strict=True)
    np.testing.assert_array_equal(examples.labels, np.array([0] * 4 + [1], np.int32))
    # Adm-clerical, Exec-managerial, Handlers-cleaners twice, unknown.
    np.testing.assert_array_equal(groups, np.array([8, 4, 6, 6, 14], np.int32))
    assert examples.labels.dtype == groups.dtype == np.int32


def test_the_test_table_has_a_comment_and_full_stops():
    lines = PEOPLE.replace("50K", "50K.")
    examples, groups = parse_table("mine", f"|1x3 validator\n{lines}\n".encode())
    np.testing.assert_array_equal(examples.features, expected_features(), strict=True)
    assert examples.labels.tolist() == [0, 0, 0, 0, 1]
    assert groups.tolist() == [8, 4, 6, 6, 14]


def test_an_interval_begins_at_its_cut():
    got = Number("hours", (35, 40)).encode(["1", "34", "35", "39", "40", "99"])
    assert got.argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2]
    assert (got.sum(axis=1) == 1).all()


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match=r"Column sex has the values \['male'\]"):
        Category("sex", "Female Male").encode(["Male", "male"])


def test_a_broken_line_is_refused():
    with pytest.raises(ValueError, match=r"mine: the line .* expected 15"):
        parse_table("mine", PEOPLE[:-10].encode())


def test_another_file_under_the_same_name_is_refused(tmp_path):
    for name in ("adult.data", "adult.test"):
        (tmp_path / name).write_text(PEOPLE)
    with pytest.raises(ValueError, match=r"adult\.data differs from the published"):
        adult(tmp_path)
