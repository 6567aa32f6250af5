"""Devices and their examples, and how examples are split among devices."""

from fedbilevel.data.partitions import fill_empty_parts, partition, take

__all__ = ["fill_empty_parts", "partition", "take"]
