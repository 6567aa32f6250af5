import numpy as np
import pytest

from fedbilevel.data import by_column

STATES = ["Texas"] * 5 + ["Maine"] * 2 + ["Ohio"] + ["Texas"]


def test_each_row_is_in_the_site_of_its_value():
    sites = by_column(STATES)
    assert sites.names == ("Maine", "Ohio", "Texas")
    assert [rows.tolist() for rows in sites.rows] == [[5, 6], [7], [0, 1, 2, 3, 4, 8]]
    assert sites.small == {}
    assert sites.report is None


def test_columns_of_every_library_are_accepted():
    import pandas
    import pyarrow

    expected = by_column(STATES)
    for column in (
        np.array(STATES),
        pandas.Series(STATES),
        pyarrow.array(STATES).to_pylist(),
    ):
        sites = by_column(column)
        assert sites.names == expected.names
        for got, rows in zip(sites.rows, expected.rows, strict=True):
            np.testing.assert_array_equal(got, rows)


def test_small_sites_are_dropped_and_reported():
    sites = by_column(STATES, smallest=3)
    assert sites.names == ("Texas",)
    assert sites.small == {"Maine": 2, "Ohio": 1}
    assert sites.report == "2 small sites with 3 rows dropped: Maine, Ohio."


def test_small_sites_are_merged_under_a_name_and_reported():
    sites = by_column(STATES, smallest=3, other="rest")
    assert sites.names == ("Texas", "rest")
    assert sites.rows[1].tolist() == [5, 6, 7]
    assert sites.small == {"Maine": 2, "Ohio": 1}
    assert sites.report == "2 small sites with 3 rows merged into 'rest': Maine, Ohio."
    # Without small sites there is nothing to merge.
    assert by_column(STATES, smallest=1, other="rest").names == by_column(STATES).names


def test_a_long_list_of_small_sites_is_shortened():
    sites = by_column([*STATES, *"abcdefg"], smallest=6)
    assert sites.report is not None
    assert sites.report.endswith("dropped: Maine, Ohio, a, b, c and 4 more.")


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        (["a", None], {}, "no value in 1 of 2 rows"),
        (STATES, {"smallest": 0}, "smallest is 0; give a number of rows of at least 1"),
        (STATES, {"smallest": 7}, "No site has at least 7 rows; the largest has 6"),
        (STATES, {"smallest": 3, "other": "Texas"}, "which is the name of a site"),
        (STATES, {"smallest": 4, "other": "rest"}, "have 3 rows together, fewer than"),
    ],
)
def test_a_mistake_is_refused_with_its_cure(values, arguments, message):
    with pytest.raises(ValueError, match=message):
        by_column(values, **arguments)
