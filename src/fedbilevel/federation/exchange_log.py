"""What the server writes down of an exchange."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Exchange(NamedTuple):
    """Who took part in an exchange, who did not and why, and what it cost.

    Attributes:
        round_number: counted from 0.
        position: in the round, counted from 0.
        seconds: that it took.
        counted: the devices whose uploads entered the mean.
        excluded: why others' did not, by device.
        skipped: devices that were not asked, since they had missed several in a row.
        bytes_down: of all messages to devices.
        bytes_up: of all messages that came.

    Example:
        >>> Exchange(0, 0, 0.1, ["a"], {"b": "it took too long"}, [], 300, 200).line
        '{"round_number": 0, "position": 0, "seconds": 0.1, "counted": ["a"],
          "excluded": {"b": "it took too long"}, "skipped": [], "bytes_down": 300,
          "bytes_up": 200}'
    """

    round_number: int
    position: int
    seconds: float
    counted: Sequence[str]
    excluded: Mapping[str, str]
    skipped: Sequence[str]
    bytes_down: int
    bytes_up: int

    @property
    def line(self) -> str:
        """The exchange as JSON."""
        return json.dumps(self._asdict())

    @classmethod
    def parse(cls, line: str) -> "Exchange":
        """Return the exchange of a line."""
        return cls(**json.loads(line))
