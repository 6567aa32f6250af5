"""Devices, their examples, and the partition of a table among devices."""

from fedbilevel.data.partitions import fill_empty_parts, partition, take

__all__ = ["fill_empty_parts", "partition", "take"]
