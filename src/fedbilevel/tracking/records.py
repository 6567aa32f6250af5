"""Records of a run: one line of JSON for each evaluation."""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import DeviceExclusions, Exclusions
from fedbilevel.regular_files import read_regular

logger = logging.getLogger("fedbilevel")
RECORDS = "metrics.jsonl"
"""File name of the records in the run directory."""


LIMIT_ERRORS = RecursionError, OverflowError
"""Errors of JSON that is nested too deeply, or has too large numbers."""


class Record(NamedTuple):
    """The progress, costs and metrics of a run at an evaluation.

    Attributes:
        rounds: number of finished rounds; 0 at the start.
        seconds: duration of the rounds, with compilation, without evaluations and
            pauses before resumptions.
        costs: total costs.
        metrics: metrics, by name.
        exclusions: number of exclusions of each device.

    Example:
        >>> record = Record(3, 1.5, Costs(exchanges=4), {"loss": 0.5})
        >>> Record.parse(record.line) == record
        True
    """

    rounds: int
    seconds: float
    costs: Costs
    metrics: Mapping[str, float]
    exclusions: Exclusions = Exclusions()

    @property
    def line(self) -> str:
        """JSON text of the record."""
        excluded = self.exclusions._asdict() if self.exclusions.excluded else None
        return json.dumps(
            {
                "rounds": self.rounds,
                "seconds": round(self.seconds, 3),
                **self.costs._asdict(),
                "metrics": dict(self.metrics),
                **({"exclusions": excluded} if excluded else {}),
            }
        )

    @classmethod
    def parse(cls, line: str) -> "Record":
        """Return the record of a line of JSON.

        Raises:
            ValueError: if the line is not a record.

        Example:
            >>> Record.parse("null")
            Traceback (most recent call last):
            ...
            ValueError: 'null' is not a record of a run, expected a JSON object with
            rounds, seconds, costs and metrics.
        """
        try:
            content = json.loads(line)
            costs = Costs(*(_count(content[name]) for name in Costs._fields))
            totals = content.get("exclusions", {})
            counts = {key: _count(n) for key, n in totals.items() if key != "devices"}
            excluded = tuple(
                DeviceExclusions(*map(_count, row)) for row in totals.get("devices", ())
            )
            return cls(
                _count(content["rounds"]),
                _number(content["seconds"], least=0.0),
                costs,
                {name: _number(value) for name, value in content["metrics"].items()},
                Exclusions(**counts, devices=excluded),
            )
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            *LIMIT_ERRORS,
        ) as error:
            raise ValueError(
                f"{line[:80]!r} is not a record of a run, expected a JSON object with "
                "rounds, seconds, costs and metrics."
            ) from error


def read_records(directory: Path) -> Iterator[Record]:
    """Yield the records of a run, oldest first.

    A damaged line is ignored with a warning. An incomplete last line, as after a crash,
    is ignored without a warning.

    Raises:
        UnreadableError: if the path is not a regular file.

    Example:
        >>> import tempfile
        >>> list(read_records(Path(tempfile.mkdtemp())))
        []
    """
    file = directory / RECORDS
    try:
        content = read_regular(file, "restore the file of the run.")
    except FileNotFoundError:
        return
    lines = content.decode(errors="replace").split("\n")
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            yield Record.parse(line)
        except ValueError:
            damaged.append(number)
    # The text after the last newline is empty, or incomplete after a crash.
    complete = [number for number in damaged if number < len(lines)]
    if complete:
        _warn_of_damage(file, len(complete), complete[0])


@lru_cache(maxsize=64)
def _warn_of_damage(file: Path, count: int, first: int) -> None:
    """Warn of damaged lines, once for the same lines."""
    logger.warning(
        "%s: %d damaged lines are ignored, the first is line %d. Restore the file if "
        "you have a copy.",
        file,
        count,
        first,
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r}, expected a whole number, at least 0")
    return value


def _number(value: Any, least: float = -inf) -> float:
    if type(value) not in (int, float) or value < least:
        raise ValueError(f"{value!r}, expected a number, at least {least}")
    return float(value)


class MovedError(ValueError):
    """Raised if a run directory was moved or replaced during its run."""


class Journal:
    """A writer of records, each as soon as it is known.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> with Journal(directory, first=0) as journal:
        ...     journal.write(Record(0, 0.1, Costs(), {}))
        >>> [record.rounds for record in read_records(directory)]
        [0]
    """

    def __init__(self, directory: Path, first: int) -> None:
        """Drop records after round `first`, at which the run starts or resumes."""
        # A run from the start has no earlier records; another run may have left some.
        records = read_records(directory)
        earlier = [record for record in records if 0 < first >= record.rounds]
        self.seconds = earlier[-1].seconds if earlier else 0.0
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._replace(earlier)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def rewind(self, rounds: int) -> None:
        """Drop the records after `rounds` rounds, when a run returns to a checkpoint.

        Example:
            >>> import tempfile
            >>> directory = Path(tempfile.mkdtemp())
            >>> with Journal(directory, first=0) as journal:
            ...     for rounds in range(3):
            ...         journal.write(Record(rounds, 0.1, Costs(), {}))
            ...     journal.rewind(1)
            >>> [record.rounds for record in read_records(directory)]
            [0, 1]
        """
        self._file.close()
        records = read_records(self._directory)
        self._replace([record for record in records if record.rounds <= rounds])

    def write(self, record: Record) -> None:
        """Write a record and flush it.

        Raises:
            MovedError: if the run directory was moved or replaced.
            OSError: if the record cannot be written; it names the file.
        """
        self.check_location()
        try:
            self._file.write(f"{record.line}\n")
            self._file.flush()
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self._file.name) from None

    def check_location(self) -> None:
        """Raise `MovedError` if the file was moved or replaced."""
        try:
            same = os.path.samestat(
                os.stat(self._file.name), os.fstat(self._file.fileno())
            )
        except OSError:
            same = False
        if not same:
            directory = Path(self._file.name).parent
            raise MovedError(
                f"The run directory {directory} was moved or replaced during the run, "
                "so the run was stopped. Move the directory back, then resume the run: "
                f"fedbilevel resume {quote(str(directory))}"
            )

    def _replace(self, records: Sequence[Record]) -> None:
        file = self._directory / RECORDS
        atomic_write(file, "".join(f"{record.line}\n" for record in records))
        self._file = file.open("a")
