"""The monitor of a running job: detect its end, its loss and missed deadlines."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from fedbilevel.deployment.connection import Connection
from fedbilevel.deployment.deadlines import ENDING, Deadlines, Progress, Stage
from fedbilevel.flare.administrator import Administrator, NotRunningError, reason_of
from fedbilevel.flare.collab_server import TOPIC

CHECK_SECONDS = 5.0
"""Seconds between two checks of the sites that run the job."""
SILENCE = 30.0
"""Seconds without an answer after which a job that has answered before is aborted."""
ABORTING = 30.0
"""Timeout in seconds for an aborted job to end."""
LOST = 5
"""Answers that the job does not run, after which a job with status RUNNING is lost."""


class JobMonitor:
    """The monitor of a job: polls its status and aborts it after a missed deadline.

    Args:
        administrator: connection to the server.
        job: id of the job.
        present: sites that the job was submitted for.
        sites: function that returns all sites that could participate.
        deadlines: timeouts of the job's stages.
        connection: timer of the server's silence.

    Attributes:
        stopping: whether the job shall end after its round.
        reason: reason for another job after this one.
        idle: sites of the job that are connected but do not run it.
    """

    def __init__(
        self,
        administrator: Administrator,
        job: str,
        present: Iterable[str],
        sites: Callable[[], set[str]],
        deadlines: Deadlines,
        connection: Connection,
    ) -> None:
        self._administrator, self._job, self._sites = administrator, job, sites
        self._present = set(present)
        self._deadlines, self._connection = deadlines, connection
        self._progress = Progress(deadlines)
        self._submitted = time.monotonic()
        self._heard: float | None = None
        self._exchanging: float | None = None
        self._checked = 0.0
        self._absent: set[str] = set()
        self._was_cut_off = False
        self._not_running = 0
        self._is_to_end = False
        self._aborted: float | None = None
        self._until: float | None = None
        self._notice: str | None = None
        self.stopping = False
        self.idle: set[str] = set()
        self.reason = "the job ended before its last round"

    def over(self) -> bool:
        """Return whether the job has ended; abort it if it is lost or overdue.

        Raises:
            UnreachableError: if the server has not answered for too long.
        """
        try:
            status = self._administrator.status(self._job)
        except ConnectionError as error:
            self._miss(error)
            # Time without a connection is not the job's. If the server answers but the
            # job does not, the deadline continues.
            self._progress.pause()
            return self._is_late()
        self._connection.note_answer()
        if status.startswith("FINISHED"):
            # A stopped or aborted job has its reason already.
            if not self.stopping and self._aborted is None:
                self.reason = f"the job ended before its last round ({status})"
            return True
        if self._aborted is not None:
            # Its results are available only after its end.
            return time.monotonic() - self._aborted > ABORTING
        silent = 0.0 if self._heard is None else time.monotonic() - self._heard
        if status == "RUNNING" and self._not_running >= LOST:
            self.reason = "the server no longer runs the job"
        elif silent > SILENCE:
            self.reason = f"the job did not answer for {SILENCE:.0f} seconds"
        elif overdue := self._progress.overdue():
            self.reason = f"the job {overdue}"
        elif not self._is_late():
            return False
        self._administrator.abort(self._job)
        self._aborted = time.monotonic()
        return False

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the job's status report, or None if it does not answer.

        Raises:
            UnreachableError: if the server has not answered for too long.
        """
        try:
            report = self._administrator.ask(
                self._job, TOPIC, {**request, "stop": self._is_to_stop()}
            )
        except ConnectionError as error:
            self._miss(error)
            return None
        except NotRunningError:
            # This also happens for a while when a job ends. A restarted server never
            # runs the job again, so count only after a lost connection.
            self._not_running += self._was_cut_off
            return None
        self._not_running = 0
        if report is not None:
            self._heard = time.monotonic()
            if not self._is_to_end:
                self._progress.at(Stage(*report["stage"]))
            if report["exchange"] is not None and self._exchanging is None:
                self._exchanging = self._heard
        return report

    def notice(self) -> str | None:
        """Return a notice about the server to print, once."""
        notice, self._notice = self._notice, None
        return notice

    def await_end(self) -> None:
        """Expect the job to end, after the measurement of its last round."""
        self._is_to_end = True
        self._progress.at(Stage(-1, ENDING, []))

    def stop(self) -> None:
        """Stop the job after its round; abort it if it does not end in time."""
        self.stopping = True
        timeout = SILENCE + self._deadlines.round
        self._until = self._until or time.monotonic() + timeout

    def _miss(self, error: Exception) -> None:
        self._was_cut_off = True
        if self._aborted is None:
            self.reason = str(error)
        # The job may be running although its server does not answer.
        self._heard = None
        self._notice = self._connection.note_miss(reason_of(error)) or self._notice

    def _is_late(self) -> bool:
        """Return whether the job should have stopped by now."""
        return self._until is not None and time.monotonic() > self._until

    def _is_to_stop(self) -> bool:
        """Return whether to stop the job, so that a returned site can join the next."""
        current = time.monotonic()
        if self.stopping or self._exchanging is None:
            return self.stopping
        # Not at once: a new job takes time to begin, and a site may leave again.
        if current - self._exchanging < self._exchanging - self._submitted:
            return False
        if current - self._checked < CHECK_SECONDS:
            return False
        self._checked = current
        running = self._administrator.running(self._job)
        absent = (self._administrator.connected() & self._sites()) - running
        back = absent & self._absent
        self._absent = absent
        if not running:
            return False
        # A site that has left or refused this job is suspended first, for longer each
        # time. Otherwise a site that refuses every job would stop every job.
        idle = (back & self._present) - self.idle
        self.idle |= idle
        back -= idle
        if back:
            self.stopping = True
            self.reason = f"{', '.join(sorted(back))} can participate again"
        return self.stopping
