"""Devices and their examples, and how examples are split among devices."""

from fedbilevel.data.partitions import nobody_without, partition, take

__all__ = ["nobody_without", "partition", "take"]
