"""What is written down of a run: one line of JSON a measurement."""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import DeviceExclusions, Exclusions
from fedbilevel.regular_files import read_regular

logger = logging.getLogger("fedbilevel")
RECORDS = "metrics.jsonl"
"""The file of a run's directory that they are in."""


TOO_MUCH = RecursionError, OverflowError
"""What lines of JSON can be too deep, or too large, for."""


class Record(NamedTuple):
    """How far a run was, what had been spent by then, and what was measured.

    Attributes:
        rounds: how many were done by then; 0 at the start.
        seconds: that the rounds took, compilation included; what was measured and
            pauses between resumptions are left aside.
        costs: all that had been spent.
        figures: what was measured, by name.
        exclusions: how often devices were excluded until then.

    Example:
        >>> record = Record(3, 1.5, Costs(exchanges=4), {"loss": 0.5})
        >>> Record.parse(record.line) == record
        True
    """

    rounds: int
    seconds: float
    costs: Costs
    figures: Mapping[str, float]
    exclusions: Exclusions = Exclusions()

    @property
    def line(self) -> str:
        """The record as JSON."""
        excluded = self.exclusions._asdict() if self.exclusions.excluded else None
        return json.dumps(
            {
                "rounds": self.rounds,
                "seconds": round(self.seconds, 3),
                **self.costs._asdict(),
                "figures": dict(self.figures),
                **({"exclusions": excluded} if excluded else {}),
            }
        )

    @classmethod
    def parse(cls, line: str) -> "Record":
        """Return the record of a line.

        Raises:
            ValueError: if the line is damaged.

        Example:
            >>> Record.parse("null")
            Traceback (most recent call last):
            ...
            ValueError: 'null' is no record of a run.
        """
        try:
            found = json.loads(line)
            costs = Costs(*(_count(found[name]) for name in Costs._fields))
            told = found.get("exclusions", {})
            counts = {key: _count(n) for key, n in told.items() if key != "devices"}
            excluded = tuple(
                DeviceExclusions(*map(_count, one)) for one in told.get("devices", ())
            )
            return cls(
                _count(found["rounds"]),
                _number(found["seconds"], least=0.0),
                costs,
                {name: _number(value) for name, value in found["figures"].items()},
                Exclusions(**counts, devices=excluded),
            )
        except (AttributeError, KeyError, TypeError, ValueError, *TOO_MUCH) as error:
            raise ValueError(f"{line[:80]!r} is no record of a run.") from error


def read_records(directory: Path) -> Iterator[Record]:
    """Yield the records of a run, oldest first.

    A line that is damaged is left out. A warning says so, unless it is the last one,
    as a crash leaves it.

    Raises:
        UnreadableError: if something else stands in the place of the file.

    Example:
        >>> import tempfile
        >>> list(read_records(Path(tempfile.mkdtemp())))
        []
    """
    file = directory / RECORDS
    try:
        content = read_regular(file, "put the run's own file back.")
    except FileNotFoundError:
        return
    lines = content.decode(errors="replace").split("\n")
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            yield Record.parse(line)
        except ValueError:
            damaged.append(number)
    # After the last record comes nothing, or what a crash has left of another.
    wrong = [number for number in damaged if number < len(lines)]
    if wrong:
        _warn_of_damage(file, len(wrong), wrong[0])


@lru_cache(maxsize=64)
def _warn_of_damage(file: Path, count: int, first: int) -> None:
    """Warn of damaged lines, once as long as they are the same."""
    logger.warning(
        "%s: %d of its lines, the first of them line %d, are no records of a run, and "
        "are left aside; put the run's own file back if you have a copy.",
        file,
        count,
        first,
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: Any, least: float = -inf) -> float:
    if type(value) not in (int, float) or value < least:
        raise ValueError(f"{value!r} is no number")
    return float(value)


class MovedError(ValueError):
    """A run directory that is no longer where its run has begun.

    Example:
        >>> str(MovedError("runs/first was moved or replaced"))
        'runs/first was moved or replaced'
    """


class Journal:
    """Records being written, each as soon as it is known.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> with Journal(directory, first=0) as journal:
        ...     journal.write(Record(0, 0.1, Costs(), {}))
        >>> [record.rounds for record in read_records(directory)]
        [0]
    """

    def __init__(self, directory: Path, first: int) -> None:
        """Keep what was written before round `first`, which is about to be run."""
        # A run from the start has nothing before it, whatever another left behind.
        earlier = [one for one in read_records(directory) if 0 < first >= one.rounds]
        self.seconds = earlier[-1].seconds if earlier else 0.0
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._replace(earlier)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def rewind(self, rounds: int) -> None:
        """Drop the records of more rounds: a run went back to a checkpoint.

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
        kept = [one for one in read_records(self._directory) if one.rounds <= rounds]
        self._replace(kept)

    def write(self, record: Record) -> None:
        """Write a record, for others to read at once.

        Raises:
            MovedError: if the directory is no longer the one that the run began in.
            OSError: if it cannot be written; names the file.
        """
        self.check_location()
        try:
            self._file.write(f"{record.line}\n")
            self._file.flush()
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self._file.name) from None

    def check_location(self) -> None:
        """Refuse to go on if another file has taken the place of this one."""
        try:
            same = os.path.samestat(
                os.stat(self._file.name), os.fstat(self._file.fileno())
            )
        except OSError:
            same = False
        if not same:
            directory = Path(self._file.name).parent
            raise MovedError(
                f"{directory} was moved or replaced while a run was going on in it, so "
                "the run was stopped; put its directory back there, and go on with it "
                f"by: fedbilevel resume {quote(str(directory))}"
            )

    def _replace(self, records: Sequence[Record]) -> None:
        file = self._directory / RECORDS
        with atomic_replace(file) as unfinished:
            unfinished.write_text("".join(f"{one.line}\n" for one in records))
        self._file = file.open("a")
