"""Sites that are left out of the next jobs of a run, each time for longer."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_replace

LEFT_OUT = "left_out.json"
"""The file of a run's directory that names them; a site without an entry is let back."""
FIRST = 30.0
"""Seconds that a site is left out for after its first failure; then twice as long."""
LONGEST = 3600.0
"""The most seconds that a site is left out for."""


class Suspension(NamedTuple):
    """Why a site is left out, and for how long.

    Attributes:
        times: how many jobs it has failed in.
        seconds: that it is left out for, from its last failure.
        reason: of its last failure.

    Example:
        >>> Suspension(1, 30.0, "its worker process ended").seconds
        30.0
    """

    times: int
    seconds: float
    reason: str


class Suspensions:
    """The sites of a run that are left out of its next jobs.

    After k failures a site is left out for 30·2ᵏ⁻¹ seconds, an hour at most, or until
    somebody removes its entry from `left_out.json`. Failures are remembered across
    commands, so that their number grows; time is not.

    Args:
        directory: of the run.
        now: returns seconds, of a clock that does not jump.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> suspensions = Suspensions(directory)
        >>> suspensions.note("job 1", {"site-3": "its worker process ended"})
        ['site-3: its worker process ended; left out for 30 seconds']
        >>> suspensions.names()
        {'site-3'}
        >>> (directory / "left_out.json").unlink()
        >>> suspensions.names()
        set()
    """

    def __init__(
        self, directory: Path, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._now = directory / LEFT_OUT, now
        self._until: dict[str, float] = {}
        self._noted: set[tuple[str, str]] = set()

    def note(self, job: str, failures: Mapping[str, str]) -> list[str]:
        """Leave out the sites that failed in a job; return a sentence for each new one.

        Args:
            job: its number; a site's failure in it counts once.
            failures: why each failed, by name.
        """
        fresh = {
            site: reason
            for site, reason in failures.items()
            if (job, site) not in self._noted
        }
        if not fresh:
            return []
        entries = self._entries()
        for site, reason in fresh.items():
            self._noted.add((job, site))
            times = entries[site].times + 1 if site in entries else 1
            seconds = min(LONGEST, FIRST * 2.0 ** (times - 1))
            entries[site] = Suspension(times, seconds, reason)
            self._until[site] = self._now() + seconds
        with atomic_replace(self._file) as unfinished:
            lines = {site: entry._asdict() for site, entry in entries.items()}
            unfinished.write_text(f"{json.dumps(lines, indent=2)}\n")
        return [
            f"{site}: {reason}; left out for {entries[site].seconds:.0f} seconds"
            for site, reason in fresh.items()
        ]

    def names(self) -> set[str]:
        """Return the sites that are left out now."""
        entries, now = self._entries(), self._now()
        return {site for site in entries if self._until.get(site, now) > now}

    def reasons(self) -> str:
        """Return which sites have failed so far and why, for a message."""
        return "; ".join(
            f"{site} failed in {entry.times} jobs: {entry.reason}"
            for site, entry in self._entries().items()
        )

    def _entries(self) -> dict[str, Suspension]:
        try:
            found = json.loads(self._file.read_text())
            return {site: Suspension(**entry) for site, entry in found.items()}
        # Whoever edits it may leave anything; then nobody is left out.
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
