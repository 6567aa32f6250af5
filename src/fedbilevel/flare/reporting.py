"""What the server of a job tells of itself while it runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.engines.federation import Exchange
from fedbilevel.experiments.claiming import ClaimedError
from fedbilevel.experiments.folders import EXCHANGES
from fedbilevel.replacing import replacing
from fedbilevel.tracking.records import read_records

MOST = 500
"""Records that one answer holds."""


class Reports:
    """Exchanges written down, and an administrator's questions answered.

    Args:
        home: the folder of the run at the server.

    Example:
        >>> import tempfile
        >>> reports = Reports(Path(tempfile.mkdtemp()))
        >>> reports.note(Exchange(0, 0, 0.1, ["a"], {}, [], 300, 200))
        >>> reports.answer("fedbilevel", {"after": -1}, None)["records"]
        []
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._latest: Exchange | None = None
        self.stop_is_asked = False

    def note(self, exchange: Exchange) -> None:
        """Write an exchange down; what a crash left of later ones is forgotten."""
        file = self._home / EXCHANGES
        if self._latest is None and file.exists():
            lines = file.read_text().splitlines()
            with replacing(file) as unfinished:
                kept = [line for line in lines if _before(line, exchange.round_number)]
                unfinished.write_text("".join(f"{line}\n" for line in kept))
        self._latest = exchange
        with file.open("a") as appended:
            appended.write(f"{exchange.line}\n")

    def answer(self, topic: str, asked: Any, context: Any) -> dict[str, Any]:
        """Tell what was measured, and who was left out of the latest exchange.

        Args:
            topic: of the question, always the same.
            asked: `after`, the number of rounds whose record is known already; `stop`,
                if the job is to end after this round.
            context: of the software that asks.
        """
        asked = asked if isinstance(asked, Mapping) else {}
        self.stop_is_asked = self.stop_is_asked or bool(asked.get("stop"))
        after = asked.get("after", -1)
        lines = [one.line for one in read_records(self._home) if one.rounds > after]
        latest = self._latest
        return {
            "records": lines[:MOST],
            "exchange": None if latest is None else latest.line,
        }


def is_mistake(error: Exception) -> bool:
    """Whether another try would fail in the same way: somebody has to change something.

    Example:
        >>> is_mistake(ValueError("the learning rate is negative"))
        True
    """
    kinds = ValueError, TypeError
    return isinstance(error, kinds) and not isinstance(error, ClaimedError)


def _before(line: str, round_number: int) -> bool:
    try:
        return bool(json.loads(line)["round_number"] < round_number)
    except (ValueError, KeyError, TypeError):
        return False  # a crash left it unfinished
