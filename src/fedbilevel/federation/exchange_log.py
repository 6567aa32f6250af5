"""The server's record of an exchange: a line of `exchanges.jsonl`."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Exchange(NamedTuple):
    """Participants, excluded devices and cost of an exchange.

    Attributes:
        round_number: round, counted from 0.
        position: exchange within the round, counted from 0.
        seconds: duration.
        counted: devices whose uploads entered the mean.
        excluded: reason for each contacted device whose upload did not count.
        skipped: devices not contacted, because they missed several exchanges in a
            row, or because a repeated secure sum is without them.
        bytes_down: bytes of all messages to devices.
        bytes_up: bytes of all replies.

    Example:
        >>> Exchange(0, 0, 0.1, ["a"], {"b": "timed out"}, [], 300, 200).line
        '{"round_number": 0, "position": 0, "seconds": 0.1, "counted": ["a"],
          "excluded": {"b": "timed out"}, "skipped": [], "bytes_down": 300,
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
        """One line of JSON."""
        return json.dumps(self._asdict())

    @classmethod
    def parse(cls, line: str) -> "Exchange":
        """Return the exchange that a line of JSON describes."""
        return cls(**json.loads(line))
