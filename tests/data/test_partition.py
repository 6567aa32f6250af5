import numpy as np
import pytest

from fedbilevel.data.partitions import partition, take

pytestmark = pytest.mark.slow

LABELS = np.repeat(np.arange(4), 250)


def shares(parts):
    return np.array(
        [np.bincount(LABELS[part], minlength=4) / len(part) for part in parts]
    )


def assert_every_row_once(parts):
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_iid_parts_have_everyones_labels_though_the_table_is_sorted():
    import flwr_datasets as flwr

    parts = partition(flwr.partitioner.IidPartitioner(num_partitions=5), label=LABELS)
    assert_every_row_once(parts)
    assert np.abs(shares(parts) - 0.25).max() < 0.15


def test_dirichlet_parts_differ_in_their_labels():
    import flwr_datasets as flwr

    partitioner = flwr.partitioner.DirichletPartitioner(
        num_partitions=5, partition_by="label", alpha=0.1, min_partition_size=5
    )
    parts = partition(partitioner, label=LABELS)
    assert_every_row_once(parts)
    assert shares(parts).max(axis=1).mean() > 0.6


def test_parts_by_column_hold_one_value_each():
    import flwr_datasets as flwr

    parts = partition(flwr.partitioner.NaturalIdPartitioner("label"), label=LABELS)
    assert_every_row_once(parts)
    assert [len(set(LABELS[part])) for part in parts] == [1] * 4
    assert take({"a": LABELS}, parts[0])["a"].shape == (250,)


def test_columns_of_different_length_are_refused():
    import flwr_datasets as flwr

    with pytest.raises(ValueError, match="columns of equal length"):
        partition(flwr.partitioner.IidPartitioner(2), label=[1, 2], other=[1])
