import numpy as np
import pytest
from flwr_datasets.partitioner import DirichletPartitioner

from fedbilevel.data.partitions import partition
from fedbilevel.problems import LabelledRows, Split, regularisation
from tests.problems import tables
from tests.problems.tables import CLASSES, FEATURES, held


def test_devices_hold_their_rows():
    split = tables.split()
    task = regularisation(split)
    for device in range(2):
        upper, lower = held(task, device)
        for rows, table, got in (
            (split.validation_rows[device], split.validation, upper),
            (split.training_rows[device], split.training, lower),
        ):
            np.testing.assert_array_equal(got.features, table.features[rows])
            np.testing.assert_array_equal(got.labels, table.labels[rows])


def test_flowers_partitions_make_a_split():
    table = tables.table(90, seed=0)

    def rows():
        partitioner = DirichletPartitioner(
            num_partitions=4, partition_by="label", alpha=0.5, min_partition_size=3
        )
        return partition(partitioner, label=np.asarray(table.labels))

    task = regularisation(Split(table, table, table, rows(), rows(), CLASSES))
    assert task.devices.device_count == 4
    assert task.devices.lower_sizes.sum() == 90


@pytest.mark.single_precision
def test_double_precision_features_start_a_single_precision_run():
    task = regularisation(tables.split())
    assert task.x.dtype == task.y.dtype == np.float32


def labelled(features, labels):
    return LabelledRows(np.asarray(features), np.asarray(labels))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 2}, "A label of the training examples is 2, .* classes=2"),
        ({"classes": 1}, "classes is 1, expected at least 2"),
        ({"test": labelled(np.ones((1, FEATURES)), [-1])}, "test examples is -1"),
        ({"test": labelled(np.ones((1, 9)), [0])}, "test examples have 9 features"),
        ({"validation": labelled(np.ones((5, 4), int), [0] * 5)}, "floating-point"),
        ({"validation": labelled(np.ones((5, 2, 2)), [0] * 5)}, r"shape \(5, 2, 2\)"),
        ({"validation": labelled(np.ones((5, 4)), [0.0] * 5)}, "integers from 0"),
        ({"validation": labelled(np.ones((5, 4)), [0] * 4)}, "one label per row"),
        ({"test": labelled(np.ones((0, 4)), np.zeros(0, int))}, "at least one row"),
        ({"training_rows": [np.arange(7)]}, "has 1 device, but"),
        ({"training_rows": [np.arange(3), np.array([7])]}, "row 7 for device 1"),
        ({"validation_rows": [np.array([-1]), np.arange(2)]}, "row -1 for device 0"),
        ({"training_rows": [np.arange(3), np.arange(0)]}, "no lower examples"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        regularisation(tables.split()._replace(**change))
