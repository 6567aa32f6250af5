"""The protocol of trackers."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from fedbilevel.tracking.records import Record


class RunStatus(Enum):
    """The end of a run."""

    FINISHED = "finished"
    STOPPED = "stopped before its last round"
    FAILED = "failed"


@runtime_checkable
class Tracker(Protocol):
    """A receiver of the records of a run.

    `track` calls these methods in a run.
    """

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """Begin or resume a run with these settings, by dotted name.

        Raises:
            OSError: if the tracker's server cannot be reached.
            ImportError: if the tracker's library is not installed.
        """

    def record(self, record: Record) -> None:
        """Receive a record; a repeated round is sent again."""

    def end(self, outcome: RunStatus) -> None:
        """End the run: no more records follow."""


def numbers(record: Record) -> dict[str, float]:
    """Return all values of a record, by name.

    Example:
        >>> from fedbilevel import Costs
        >>> numbers(Record(3, 1.5, Costs(exchanges=4), {"loss": 0.5}))["loss"]
        0.5
    """
    costs = {
        f"spent/{name}": float(cost) for name, cost in record.costs._asdict().items()
    }
    return {**record.metrics, **costs, "spent/seconds": record.seconds}
