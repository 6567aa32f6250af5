"""What a tracker is."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from fedbilevel.tracking.records import Record


@runtime_checkable
class Tracker(Protocol):
    """Takes the records of one run, from any of its parts."""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """A run with these settings, by dotted name, begins or goes on."""

    def record(self, record: Record) -> None:
        """A round was measured."""

    def end(self) -> None:
        """No more will come."""


def numbers(record: Record) -> dict[str, float]:
    """Return all numbers of a record, by name.

    Example:
        >>> from fedbilevel import Costs
        >>> numbers(Record(3, 1.5, Costs(exchanges=4), {"loss": 0.5}))["loss"]
        0.5
    """
    spent = {
        f"spent/{name}": float(one) for name, one in record.costs._asdict().items()
    }
    return {**record.figures, **spent, "spent/seconds": record.seconds}
