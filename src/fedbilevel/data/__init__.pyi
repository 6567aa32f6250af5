from .partitions import fill_empty_parts, partition, take
from .sites import Sites, by_column

__all__ = ["Sites", "by_column", "fill_empty_parts", "partition", "take"]
