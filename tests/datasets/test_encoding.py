import numpy as np
import pytest

from fedbilevel.datasets.encoding import encode

EVERY = np.ones(6, bool)


def columns_of(values, training=EVERY):
    return encode({"column": values}, training).T.tolist()


def test_intervals_begin_at_quintiles():
    got = encode({"age": np.arange(100)}, np.ones(100, bool))
    np.testing.assert_array_equal(got.sum(axis=0), [19, 20, 20, 20, 21])
    np.testing.assert_array_equal(got.argmax(axis=1), np.sort(got.argmax(axis=1)))
    assert got.dtype == np.float32


def test_equal_quintiles_begin_one_interval():
    assert columns_of([0, 0, 0, 0, 1, 1]) == [[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert columns_of([7, 7, 7, 7, 7, 7]) == [[1] * 6]


@pytest.mark.parametrize("missing", [None, np.nan, "", "NA"])
def test_a_missing_value_is_a_category(missing):
    words = ["a", "b", missing, "a", "b", "a"]
    assert columns_of(words)[2] == [0, 0, 1, 0, 0, 0]
    numbers = ["1", "2", missing, "1", "2", "1"]
    assert columns_of(numbers)[2] == [0, 0, 1, 0, 0, 0]
    assert columns_of([missing] * 6) == [[1] * 6]


def test_the_training_rows_determine_the_features():
    training = np.array([True] * 4 + [False] * 2)
    words = ["a", "b", "a", "b", "new", None]
    assert columns_of(words, training) == [[1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0]]
    numbers = [1.0, 2.0, 1.0, 2.0, 50.0, np.nan]
    assert columns_of(numbers, training) == [[1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 1, 0]]


def test_booleans_are_categories():
    assert columns_of([True, False] * 3) == [[0, 1] * 3, [1, 0] * 3]


def test_a_column_of_dates_is_refused():
    dates = [f"day {number}" for number in range(2000)]
    with pytest.raises(ValueError, match=r"'when' has 2000 different values, such as"):
        encode({"when": dates}, np.ones(2000, bool))
