"""Suspension of failed sites from the next jobs of a run, with exponential backoff."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.plurals import count_noun

SUSPENSIONS = "suspensions.json"
"""File of a run directory with the suspended sites; remove an entry to end it."""
FIRST = 30.0
"""Seconds of the first suspension of a site; doubled after each failure."""
LONGEST = 3600.0
"""Maximum seconds of a suspension."""


class Suspension(NamedTuple):
    """The suspension of a site.

    Attributes:
        times: number of jobs in which the site has failed.
        seconds: duration, from the last failure.
        reason: reason for the last failure.
    """

    times: int
    seconds: float
    reason: str


class Suspensions:
    """The sites that are suspended from the next jobs of a run.

    After k failures a site is suspended for 30·2ᵏ⁻¹ seconds, at most an hour, or until
    its entry in `suspensions.json` is removed. The file keeps the number of failures
    across commands; the end of a suspension is not saved.

    Args:
        directory: run directory.
        clock: function that returns the seconds of a monotonic clock.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> suspensions = Suspensions(directory)
        >>> suspensions.note("job 1", {"site-3": "its worker process ended"})
        ['site-3: its worker process ended; suspended for 30 seconds']
        >>> suspensions.names()
        {'site-3'}
        >>> (directory / "suspensions.json").unlink()
        >>> suspensions.names()
        set()
    """

    def __init__(
        self, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._clock = directory / SUSPENSIONS, clock
        self._until: dict[str, float] = {}
        self._noted: set[tuple[str, str]] = set()

    def note(self, job: str, failures: Mapping[str, str]) -> list[str]:
        """Suspend the sites that failed in a job; return a message for each.

        Args:
            job: id of the job; a site's failure counts once per job.
            failures: reason for each failed site, by name.
        """
        new = {
            site: reason
            for site, reason in failures.items()
            if (job, site) not in self._noted
        }
        if not new:
            return []
        entries = self._entries()
        for site, reason in new.items():
            self._noted.add((job, site))
            times = entries[site].times + 1 if site in entries else 1
            seconds = min(LONGEST, FIRST * 2.0 ** (times - 1))
            entries[site] = Suspension(times, seconds, reason)
            self._until[site] = self._clock() + seconds
        lines = {site: entry._asdict() for site, entry in entries.items()}
        atomic_write(self._file, f"{json.dumps(lines, indent=2)}\n")
        return [
            f"{site}: {reason}; suspended for {entries[site].seconds:.0f} seconds"
            for site, reason in new.items()
        ]

    def names(self) -> set[str]:
        """Return the suspended sites."""
        current = self._clock()
        return {
            site for site in self._entries() if self._until.get(site, current) > current
        }

    def reasons(self) -> str:
        """Return the failed sites with their reasons, for an error message."""
        return "; ".join(
            f"{site} failed in {count_noun(entry.times, 'job')}: {entry.reason}"
            for site, entry in self._entries().items()
        )

    def _entries(self) -> dict[str, Suspension]:
        try:
            entries = json.loads(self._file.read_text())
            return {site: Suspension(**entry) for site, entry in entries.items()}
        # An operator may have edited the file: an invalid file suspends no site.
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
