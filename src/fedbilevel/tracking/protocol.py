"""What a tracker is."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from fedbilevel.tracking.records import Record


class Outcome(Enum):
    """How a run ended.

    Example:
        >>> Outcome.STOPPED.value
        'stopped before its last round'
    """

    FINISHED = "finished"
    STOPPED = "stopped before its last round"
    FAILED = "failed"


@runtime_checkable
class Tracker(Protocol):
    """Takes the records of one run, from any of its parts.

    `track` drives trackers through a run.
    """

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """A run with these settings, by dotted name, begins or goes on.

        Raises:
            OSError: if what takes the records cannot be reached.
            ImportError: if the library that reaches it is not installed.
        """

    def record(self, record: Record) -> None:
        """A round was measured; one that was run again may come again."""

    def end(self, outcome: Outcome) -> None:
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
