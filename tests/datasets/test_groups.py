import numpy as np
import pytest

from fedbilevel.datasets.groups import groups_of, held_out, ranks_in_groups
from fedbilevel.datasets.site_table import site_table


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([10, 9, 10], ("9", "10")),
        (np.array([3.0, 2.5]), ("2.5", "3")),
        (["10", "north", "9"], ("9", "10", "north")),
        ([True, False], ("False", "True")),
    ],
)
def test_names_are_the_values_in_order(values, names):
    groups, got = groups_of(values)
    assert got == names
    texts = [
        str(int(v)) if isinstance(v, float) and v == int(v) else str(v) for v in values
    ]
    assert [got[group] for group in groups] == texts


def test_columns_of_pandas_have_groups():
    import pandas

    frame = pandas.DataFrame({"city": ["Ulm", "Bonn", "Ulm"], "code": [2, 1, 2]})
    assert groups_of(frame["city"])[1] == ("Bonn", "Ulm")
    assert groups_of(frame["code"])[0].tolist() == [1, 0, 1]
    assert groups_of(frame["city"].astype("category"))[0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("missing", [None, float("nan"), "", "NA"])
def test_a_row_without_a_group_is_refused(missing):
    with pytest.raises(ValueError, match=r"'state' has no value in 2 of 3 rows"):
        groups_of([missing, "Maine", missing], "state")


def test_ranks_count_the_earlier_rows_of_a_group():
    generator = np.random.default_rng(0)
    groups, order = generator.integers(0, 5, 60), generator.permutation(60)
    ranks = ranks_in_groups(groups, order)
    for place, row in enumerate(order):
        earlier = order[:place]
        assert ranks[row] == np.count_nonzero(groups[earlier] == groups[row])


def test_a_fifth_of_each_group_is_for_test_and_always_the_same():
    groups = np.repeat(np.arange(4), [4, 5, 14, 1000])
    mask = held_out(groups)
    assert np.bincount(groups[mask], minlength=4).tolist() == [0, 1, 2, 200]
    np.testing.assert_array_equal(mask, held_out(groups))
    # The rows are mixed: their mean differs from that of all by 3 deviations at most.
    places = np.flatnonzero(mask[23:])
    assert abs(places.mean() - 499.5) < 3 * 1000 / np.sqrt(12 * 200)


def test_features_are_those_of_the_training_rows():
    # The sizes of the intervals would differ if the test rows counted.
    sites = np.repeat(["a", "b"], 10)
    values = np.arange(20.0)
    test = held_out(np.repeat([0, 1], 10))
    values[test] = 1e6
    data = site_table({"value": values}, np.zeros(20, np.int32), sites)
    assert data.train.features.sum(axis=0).tolist() == [3, 3, 3, 3, 4]
    np.testing.assert_array_equal(data.test.features[:, -1], np.ones(4))
