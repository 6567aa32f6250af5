"""The state of a job, from the metadata that NVIDIA FLARE stores."""

from collections.abc import Mapping
from typing import Any, NamedTuple

SUBMITTED, RUNNING = "SUBMITTED", "RUNNING"
ABORTED = "FINISHED:ABORTED"
"""Status of a job that was aborted, or that a site's worker ended with some codes."""
ABORT = "fedbilevel_abort"
"""Key of a job's metadata with the first request to abort it (`abort_log`)."""
SCHEDULED = "scheduled"
"""Entry of the scheduler's history for a job that is about to begin."""
TIME = len("2026-11-19 16:20:31: ")
"""Length of the time with which an entry of the scheduler's history begins."""


class Abort(NamedTuple):
    """An administrator's request to abort a job.

    Attributes:
        user: name of the administrator, from the certificate.
        time: time of the server's clock.

    Example:
        >>> str(Abort("admin@university.org", "2026-11-19 16:20:31 UTC"))
        'admin@university.org at 2026-11-19 16:20:31 UTC (clock of the server)'
    """

    user: str
    time: str

    def __str__(self) -> str:
        return f"{self.user} at {self.time} (clock of the server)"


class JobState(NamedTuple):
    """The state of a job.

    Attributes:
        status: NVIDIA FLARE's status.
        abort: first request to abort the job, if there was one.
        obstacle: the scheduler's reason for not starting a submitted job.

    Example:
        >>> JobState.of({"status": "RUNNING"})
        JobState(status='RUNNING', abort=None, obstacle=None)
    """

    status: str
    abort: Abort | None = None
    obstacle: str | None = None

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "JobState":
        """Return the state that a job's metadata describe."""
        status, abort = str(meta.get("status")), meta.get(ABORT)
        history = meta.get("schedule_history") or ()
        obstacle = str(history[-1])[TIME:] if history else SCHEDULED
        is_waiting = status == SUBMITTED and obstacle != SCHEDULED
        return cls(
            status,
            None if abort is None else Abort(*map(str, abort)),
            obstacle if is_waiting else None,
        )
