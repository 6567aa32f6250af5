"""What the server of a job tells of itself while it runs."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.deployment.deadlines import BEGINNING, EXCHANGE, Stage
from fedbilevel.experiments.run_directory.layout import EXCHANGES
from fedbilevel.experiments.run_directory.lock import LockedError
from fedbilevel.federation import Exchange
from fedbilevel.tracking.records import read_records

MOST = 500
"""Records that one answer holds."""


class ServerReport:
    """Exchanges written down, and an administrator's questions answered.

    Args:
        home: the directory of the run at the server.
        awaited: returns the sites whose replies are waited for now.
        failures: returns why sites of the job have failed, by name.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> reports = ServerReport(directory, set, dict)
        >>> reports.note(Exchange(0, 0, 0.1, ["a"], {}, [], 300, 200))
        >>> reports.answer({"after": -1})["records"]
        []
    """

    def __init__(
        self,
        home: Path,
        awaited: Callable[[], Collection[str]],
        failures: Callable[[], Mapping[str, str]],
    ) -> None:
        self._home = home
        self._awaited, self._failures = awaited, failures
        self._latest: Exchange | None = None
        self._first: int | None = None
        self._stage = Stage(0, BEGINNING, [])
        self.stop_is_asked = False

    def enter(self, stage: str) -> None:
        """Note what the job waits for from now on."""
        self._stage = Stage(self._stage.number + 1, stage, [])

    def begin(self, first: int) -> None:
        """Note the round that this job began with, now that later records are gone."""
        if self._first is None:
            self._first = first

    def note(self, exchange: Exchange) -> None:
        """Write an exchange down; what a crash left of later ones is forgotten."""
        self.enter(EXCHANGE)
        file = self._home / EXCHANGES
        if self._latest is None and file.exists():
            lines = file.read_text().splitlines()
            with atomic_replace(file) as unfinished:
                kept = [line for line in lines if _before(line, exchange.round_number)]
                unfinished.write_text("".join(f"{line}\n" for line in kept))
        self._latest = exchange
        with file.open("a") as appended:
            appended.write(f"{exchange.line}\n")

    def answer(self, asked: Any) -> dict[str, Any]:
        """Return what was measured, what the job waits for, and which sites failed.

        Args:
            asked: `after`, the number of rounds whose record is known already; `stop`,
                if the job is to end after this round.
        """
        asked = asked if isinstance(asked, Mapping) else {}
        self.stop_is_asked = self.stop_is_asked or bool(asked.get("stop"))
        after, first, latest = asked.get("after", -1), self._first, self._latest
        # Until then the file may hold records that an earlier job made in vain.
        records = () if first is None else read_records(self._home)
        lines = [one.line for one in records if one.rounds > after]
        return {
            "records": lines[:MOST],
            "exchange": None if latest is None else latest.line,
            "first": first,
            "stage": [*self._stage[:2], sorted(self._awaited())],
            "failures": dict(self._failures()),
        }


def is_mistake(error: Exception) -> bool:
    """Whether another try would fail in the same way: somebody has to change something.

    Example:
        >>> is_mistake(ValueError("the learning rate is negative"))
        True
    """
    kinds = ValueError, TypeError
    return isinstance(error, kinds) and not isinstance(error, LockedError)


def _before(line: str, round_number: int) -> bool:
    try:
        return bool(json.loads(line)["round_number"] < round_number)
    except (ValueError, KeyError, TypeError):
        return False  # a crash left it unfinished
