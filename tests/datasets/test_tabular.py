import sys

import numpy as np
import pytest

from fedbilevel.datasets import DataSet, GroupedDataSet, tabular

STATES = ["Maine", "Texas"] * 10
TABLE = {
    "age": list(range(20, 40)),
    "sex": ["f", "m", "f", ""] * 5,
    "state": STATES,
    "died": ["no", "yes", "yes", "no"] * 5,
}


def csv_of(table, path):
    lines = [",".join(table)]
    lines += [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join([*lines, ""]))
    return path


def assert_equal(data, expected):
    assert data.group_names == expected.group_names
    for got, part in zip(data[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(got.features, part.features)
        np.testing.assert_array_equal(got.labels, part.labels)
    np.testing.assert_array_equal(data.train_groups, expected.train_groups)


@pytest.mark.slow
def test_every_form_of_a_table_gives_the_same_set(tmp_path):
    import datasets as hf
    import pandas

    expected = tabular(TABLE, label="died", by="state")
    assert isinstance(expected, GroupedDataSet)
    assert expected.group_names == ("Maine", "Texas")
    assert expected.train.features.shape == (16, 8)  # 5 of age, f, m and missing
    assert sorted(expected.test_groups) == [0, 0, 1, 1]
    frame = pandas.DataFrame(TABLE)
    frame.to_parquet(tmp_path / "table.parquet")
    csv_of(TABLE, tmp_path / "table.csv")
    for table in (
        frame,
        hf.Dataset.from_dict(TABLE),
        tmp_path / "table.csv",
        str(tmp_path / "table.parquet"),
    ):
        assert_equal(tabular(table, label="died", by="state"), expected)


def test_without_groups_the_set_has_a_test_part_too():
    data = tabular(TABLE, label="died", features=["age"])
    assert isinstance(data, DataSet)
    assert (len(data.train.labels), len(data.test.labels), data.classes) == (16, 4, 2)
    assert data.train.features.shape == (16, 5)


def test_classes_are_numbered_in_the_order_of_their_values():
    table = {"x": list(range(10)), "label": [10, 9, 8, 10, 9, 8, 10, 9, 8, 8]}
    data = tabular(table)
    expected = dict(enumerate([2, 1, 0, 2, 1, 0, 2, 1, 0, 0]))
    assert sorted([*data.train.labels, *data.test.labels]) == sorted(expected.values())
    assert data.classes == 3


def test_the_column_of_groups_is_no_feature():
    width = tabular(TABLE, label="died").train.features.shape[1]
    assert tabular(TABLE, label="died", by="state").train.features.shape[1] == width - 2


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [
        (TABLE, {"label": "dead"}, "The table has no column 'dead'"),
        (TABLE, {"label": "died", "by": "stat"}, "did you mean state?"),
        (TABLE, {"label": "died", "features": ["died"]}, "features has the label"),
        ({"x": [1, 2], "label": [1, 1]}, {}, "has 1 different values, expected 2 to"),
        (
            {"x": range(200), "label": np.linspace(0, 1, 200)},
            {},
            "has 200 different values, expected 2 to 100 classes",
        ),
        ({"x": [1, 2, 3], "label": [1, None, 0]}, {}, "no value in 1 of 3 rows"),
        (
            {"x": [1, 2], "label": [1, 0], "site": ["a", ""]},
            {"by": "site"},
            "'site' has no value in 1 of 2 rows, so these rows belong to no group",
        ),
        ("table.xlsx", {}, "ends in '.xlsx', expected .csv or .parquet"),
    ],
)
def test_a_mistake_is_refused_with_its_cure(table, arguments, message):
    with pytest.raises(ValueError, match=message):
        tabular(table, **arguments)


def test_a_missing_file_and_a_broken_line_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv does not exist"):
        tabular(tmp_path / "nowhere.csv")
    broken = tmp_path / "broken.csv"
    broken.write_text("x,label\n1,0\n2\n")
    with pytest.raises(ValueError, match=r"broken\.csv, line 3: the row has 1 values"):
        tabular(broken)
    broken.write_text("x,label\n")
    with pytest.raises(ValueError, match="has no rows after its header"):
        tabular(broken)


def test_without_pyarrow_the_cure_is_named(monkeypatch, tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install 'fedbilevel\[partition\]'"):
        tabular(tmp_path / "table.parquet")
