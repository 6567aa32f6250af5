"""Training and validation rows of an experiment whose devices are sites of the data."""

import logging
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fedbilevel.data.sites import Sites, by_group
from fedbilevel.datasets.groups import ranks_in_groups
from fedbilevel.datasets.table import DataSet, GroupedDataSet, LabelledData
from fedbilevel.experiments.schema.data import Data, Partition

logger = logging.getLogger("fedbilevel")


class SiteRows(NamedTuple):
    """The sites of an experiment.

    Attributes:
        sites: names and rows of the sites in the data set's training examples, with a
            warning if small sites were dropped or merged.
        test: test examples, without those of dropped sites.
        site_of: site of each training example of the data set; -1 if it was dropped.
    """

    sites: Sites
    test: LabelledData
    site_of: Int[np.ndarray, "examples"]


def find_sites(
    source: DataSet | GroupedDataSet, data: Data, parts: Partition
) -> SiteRows:
    """Return the sites of a data set.

    Raises:
        ValueError: if the data set has no groups, or the sites are too small.

    Example:
        >>> rows = LabelledData(np.zeros((3, 2), np.float32), np.zeros(3, np.int32))
        >>> groups = np.array([1, 0, 1], np.int32)
        >>> source = GroupedDataSet(rows, rows, 2, groups, groups, ("north", "south"))
        >>> result = find_sites(source, Data(), Partition(natural=True, smallest=2))
        >>> result.sites.names, result.test.labels.shape, result.site_of
        (('south',), (2,), array([ 0, -1,  0]))
    """
    if not isinstance(source, GroupedDataSet):
        raise ValueError(
            f"partition.natural is true, but the data set {data.name} has no natural "
            "groups (adult has); remove the key, and set partition.devices."
        )
    sites = by_group(
        source.train_groups,
        source.group_names,
        smallest=parts.smallest,
        other=parts.other,
    )
    if sites.report is not None:
        logger.warning("partition.smallest is %d: %s", parts.smallest, sites.report)
    site_of = np.full(len(source.train_groups), -1)
    for site, rows in enumerate(sites.rows):
        site_of[rows] = site
    test = source.test
    if sites.other is None:
        dropped = np.isin(np.array(source.group_names), list(sites.small))
        remaining = ~dropped[source.test_groups]
        test = LabelledData(test.features[remaining], test.labels[remaining])
    return SiteRows(sites, test, site_of)


def mixed_order(
    site_of: Int[np.ndarray, "rows"], training: int, validation: int
) -> Int[np.ndarray, "chosen"]:
    """Return training rows, then validation rows, with the same shares of all sites.

    A site with at least two rows has one of both, if the numbers of rows allow it. The
    first rows of each site are chosen, so shuffled rows are random ones.

    Args:
        site_of: site of each row, from 0.
        training: number of training rows.
        validation: number of validation rows.

    Example:
        >>> site_of = np.array([0, 0, 0, 0, 0, 0, 1, 1])
        >>> mixed_order(site_of, 4, 2)
        array([0, 6, 1, 2, 3, 7])
    """
    # Two rows of each site come first, so that it can have one of both.
    chosen = _spread(site_of, first=2)[: training + validation]
    chosen = np.sort(chosen)
    order: np.ndarray = chosen[_spread(site_of[chosen], first=1)]
    return order


def require_rows(
    names: tuple[str, ...],
    training_rows: list[Int[np.ndarray, "_"]],
    validation_rows: list[Int[np.ndarray, "_"]],
) -> None:
    """Raise an error if a site has no training or no validation rows.

    Example:
        >>> empty, rows = np.array([], int), np.array([0])
        >>> require_rows(("Ulm", "Bonn"), [rows, rows], [rows, empty])
        Traceback (most recent call last):
        ...
        ValueError: Site 'Bonn' has 1 training and 0 validation examples, and needs one
        of both. Raise partition.smallest, data.train_size or data.validation_size.
    """
    for name, training, validation in zip(
        names, training_rows, validation_rows, strict=True
    ):
        if not len(training) or not len(validation):
            raise ValueError(
                f"Site {name!r} has {len(training)} training and {len(validation)} "
                "validation examples, and needs one of both. Raise "
                "partition.smallest, data.train_size or data.validation_size."
            )


def _spread(site_of: Int[np.ndarray, "rows"], first: int) -> Int[np.ndarray, "rows"]:
    """Return all rows so that each prefix has about the same share of every site."""
    ranks = ranks_in_groups(site_of, np.arange(len(site_of)))
    sizes = np.bincount(site_of)[site_of]
    places = np.maximum(ranks + 1 - first, 0) / np.maximum(sizes - 1, 1)
    return np.argsort(places, kind="stable")
