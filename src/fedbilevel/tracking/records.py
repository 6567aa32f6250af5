"""What is written down of a run: one line of JSON a measurement."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.exclusions import DeviceExclusions, Exclusions
from fedbilevel.replacing import replacing

RECORDS = "measured.jsonl"
"""The file of a run's folder that they are in."""


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
        found = json.loads(line)
        try:
            costs = Costs(*(found[name] for name in Costs._fields))
            told = found.get("exclusions", {})
            exclusions = Exclusions(**told)._replace(
                devices=tuple(DeviceExclusions(*one) for one in told.get("devices", ()))
            )
            figures = dict(found["figures"])
            return cls(found["rounds"], found["seconds"], costs, figures, exclusions)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{line!r} is no record of a run.") from error


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the records of a run, oldest first.

    A line that is damaged, as a crash leaves it, is left out.

    Example:
        >>> import tempfile
        >>> list(read_records(Path(tempfile.mkdtemp())))
        []
    """
    file = folder / RECORDS
    if not file.exists():
        return
    for line in file.read_text(errors="replace").splitlines():
        try:
            yield Record.parse(line)
        except ValueError:
            continue


class Journal:
    """Records being written, each as soon as it is known.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with Journal(folder, first=0) as journal:
        ...     journal.write(Record(0, 0.1, Costs(), {}))
        >>> [record.rounds for record in read_records(folder)]
        [0]
    """

    def __init__(self, folder: Path, first: int) -> None:
        """Keep what was written before round `first`, which is about to be run."""
        # A run from the start has nothing before it, whatever another left behind.
        earlier = [one for one in read_records(folder) if 0 < first >= one.rounds]
        self.seconds = earlier[-1].seconds if earlier else 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._replace(earlier)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def rewind(self, rounds: int) -> None:
        """Drop the records of more rounds: a run went back to a checkpoint.

        Example:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> with Journal(folder, first=0) as journal:
            ...     for rounds in range(3):
            ...         journal.write(Record(rounds, 0.1, Costs(), {}))
            ...     journal.rewind(1)
            >>> [record.rounds for record in read_records(folder)]
            [0, 1]
        """
        self._file.close()
        kept = [one for one in read_records(self._folder) if one.rounds <= rounds]
        self._replace(kept)

    def write(self, record: Record) -> None:
        """Write a record, for others to read at once."""
        self._file.write(f"{record.line}\n")
        self._file.flush()

    def _replace(self, records: Sequence[Record]) -> None:
        file = self._folder / RECORDS
        with replacing(file) as unfinished:
            unfinished.write_text("".join(f"{one.line}\n" for one in records))
        self._file = file.open("a")
