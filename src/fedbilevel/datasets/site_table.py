"""A data set with sites from the columns of one table."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32

from fedbilevel.datasets.encoding import Column, encode
from fedbilevel.datasets.groups import groups_of, held_out
from fedbilevel.datasets.table import GroupedDataSet, LabelledData


def site_table(
    columns: Mapping[str, Column],
    labels: Int32[np.ndarray, "rows"],
    sites: Column,
    classes: int = 2,
    site_column: str = "site",
) -> GroupedDataSet:
    """Return a table as a data set whose groups are sites.

    A fifth of each site's rows, rounded down and drawn with a fixed seed, are for test.
    The training rows determine the features (`encoding.encode`).

    Args:
        columns: values of each row, by name of the column.
        labels: class of each row, from 0.
        sites: site of each row.
        classes: number of classes.
        site_column: name of the column of sites, for the error message.

    Raises:
        ValueError: a row has no site.

    Example:
        >>> sites = ["Texas"] * 5 + ["Maine"] * 5
        >>> labels = np.tile(np.array([0, 1], np.int32), 5)
        >>> data = site_table({"age": np.arange(10)}, labels, sites)
        >>> data.group_names, data.test_groups, data.train.features.shape
        (('Maine', 'Texas'), array([1, 0], dtype=int32), (8, 5))
    """
    groups, names = groups_of(sites, site_column)
    test = held_out(groups)
    features = encode(columns, ~test)
    train_part, test_part = (
        LabelledData(features[rows], labels[rows]) for rows in (~test, test)
    )
    return GroupedDataSet(
        train_part, test_part, classes, groups[~test], groups[test], names
    )
