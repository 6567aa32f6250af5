"""Devices, their examples, and the partition of a table among devices."""

from fedbilevel.data.partitions import fill_empty_parts, partition, take
from fedbilevel.data.sites import Sites, by_column

__all__ = ["Sites", "by_column", "fill_empty_parts", "partition", "take"]
