"""The status report of a job's server, requested by an administrator."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedbilevel.atomic_write import atomic_write
from fedbilevel.deployment.deadlines import BEGINNING, EXCHANGE, Stage
from fedbilevel.deployment.exclusion_notices import ExclusionNotices
from fedbilevel.experiments.run_directory.layout import EXCHANGES
from fedbilevel.experiments.run_directory.lock import LockedError
from fedbilevel.federation import Exchange
from fedbilevel.tracking.records import read_records

MAX_RECORDS = 500
"""Maximum number of records in one report."""


FIELDS = frozenset(
    {
        "records",
        "exclusions",
        "exchange",
        "first",
        "stage",
        "failures",
        "warnings",
    }
)
"""Keys of a report; those of another version of the package may differ."""


class ServerReport:
    """The log of exchanges and the stage of a job, reported to an administrator.

    Args:
        directory: run directory at the server.
        awaited: function that returns the sites whose replies are awaited.
        failures: function that returns the reason for each failed site, by name.

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
        directory: Path,
        awaited: Callable[[], Collection[str]],
        failures: Callable[[], Mapping[str, str]],
    ) -> None:
        self._directory = directory
        self._awaited, self._failures = awaited, failures
        self._latest: Exchange | None = None
        self._notices = ExclusionNotices()
        self._first: int | None = None
        self._stage = Stage(0, BEGINNING, [])
        self._warnings: Mapping[str, str] = {}
        self.is_stopping = False

    def warn(self, warnings: Mapping[str, str]) -> None:
        """Set the warnings about sites that have enrolled, by name."""
        self._warnings = warnings

    def enter(self, stage: str) -> None:
        """Set the stage of the job."""
        self._stage = Stage(self._stage.number + 1, stage, [])

    def begin(self, first: int) -> None:
        """Set the round that this job began with, once later records are removed."""
        if self._first is None:
            self._first = first

    def note(self, exchange: Exchange) -> None:
        """Log an exchange; lines of later rounds, left by a crash, are removed."""
        self.enter(EXCHANGE)
        file = self._directory / EXCHANGES
        if self._latest is None and file.exists():
            lines = file.read_text().splitlines()
            number = exchange.round_number
            earlier = [f"{line}\n" for line in lines if _is_before(line, number)]
            atomic_write(file, "".join(earlier))
        self._latest = exchange
        self._notices.note(exchange)
        with file.open("a") as appended:
            appended.write(f"{exchange.line}\n")

    def answer(self, request: Any) -> dict[str, Any]:
        """Return new records and exclusions, the latest exchange and the stage.

        Args:
            request: `after`, the rounds of the last known record; `exclusions`, the
                number of known exclusions; `stop`, whether the job shall end after this
                round.
        """
        request = request if isinstance(request, Mapping) else {}
        self.is_stopping = self.is_stopping or bool(request.get("stop"))
        after, first, latest = request.get("after", -1), self._first, self._latest
        # Before `begin` the file may contain records that this job will repeat.
        records = () if first is None else read_records(self._directory)
        lines = [record.line for record in records if record.rounds > after]
        return {
            "records": lines[:MAX_RECORDS],
            "exclusions": self._notices.after(request.get("exclusions", 0)),
            "exchange": None if latest is None else latest.line,
            "first": first,
            "stage": [*self._stage[:2], sorted(self._awaited())],
            "failures": dict(self._failures()),
            "warnings": dict(self._warnings),
        }


def is_mistake(error: Exception) -> bool:
    """Return whether an error is a mistake of the user, which a retry would repeat.

    Example:
        >>> is_mistake(ValueError("the learning rate is negative"))
        True
    """
    types = ValueError, TypeError
    return isinstance(error, types) and not isinstance(error, LockedError)


def _is_before(line: str, round_number: int) -> bool:
    try:
        return bool(json.loads(line)["round_number"] < round_number)
    except (ValueError, KeyError, TypeError):
        return False  # A crash left the line unfinished.
