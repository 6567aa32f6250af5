"""The monitor of a running job: detect its end, its loss and missed deadlines."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from fedbilevel.deployment.connection import Connection, UnreachableError
from fedbilevel.deployment.deadlines import ENDING, Deadlines, Progress, Stage
from fedbilevel.deployment.poll_schedule import SHORTEST, PollSchedule
from fedbilevel.deployment.server_report import FIELDS
from fedbilevel.federation import Exchange
from fedbilevel.flare.administrator import Administrator, NotRunningError, reason_of
from fedbilevel.flare.collab_server import TOPIC
from fedbilevel.flare.job_state import ABORTED, RUNNING, Abort, JobState

CHECK_SECONDS = 5.0
"""Seconds between two checks of the sites that run the job."""
SILENCE = 30.0
"""Seconds without an answer after which a job that has answered before is aborted."""
STOP_SECONDS = 5.0
"""Seconds for the round of a job that the user stops. Sites compute for this round, and
its length is the job's: a job that is stopped must not occupy them for hours."""
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
        clock: function that returns the seconds of a monotonic clock.

    Attributes:
        stopping: whether the job shall end after its round.
        reason: reason for another job after this one.
        idle: sites of the job that are connected but do not run it.
        abort: abort that ended the job, requested by an administrator and not by this
            command.
        obstacle: NVIDIA FLARE's reason for not starting the job before the deadline.
    """

    def __init__(
        self,
        administrator: Administrator,
        job: str,
        present: Iterable[str],
        sites: Callable[[], set[str]],
        deadlines: Deadlines,
        connection: Connection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._administrator, self._job, self._sites = administrator, job, sites
        self._present = set(present)
        self._deadlines, self._connection = deadlines, connection
        self._clock, self._schedule = clock, PollSchedule(clock)
        self._progress = Progress(deadlines, clock)
        self._submitted = clock()
        self._state = JobState(RUNNING)
        self._has_answered = False
        self._silent_since: float | None = None
        self._seen: object = None
        self._exchanging: float | None = None
        self._checked = 0.0
        self._absent: set[str] = set()
        self._counted: set[str] = set()
        self._was_cut_off = False
        self._not_running = 0
        self._is_to_end = False
        self._aborted: float | None = None
        self._until: float | None = None
        self._notice: str | None = None
        self.stopping = False
        self.idle: set[str] = set()
        self.reason = "the job ended before its last round"
        self.abort: Abort | None = None
        self.obstacle: str | None = None

    def over(self) -> bool:
        """Return whether the job has ended; abort it if it is lost or overdue.

        Raises:
            UnreachableError: if the server has not answered for too long.
        """
        if self._has_answered and self._silent_since is None and self._aborted is None:
            # A job that answers runs, so its state need not be requested.
            return self._end_if_overdue()
        try:
            state = self._administrator.state(self._job)
        except ConnectionError as error:
            self._miss(error)
            # Time without a connection is not the job's. If the server answers but the
            # job does not, the deadline continues.
            self._progress.pause()
            return self._is_late()
        self._connection.note_answer()
        if state != self._state:
            self._schedule.note_change()
            self._notice = _notice_of(state) or self._notice
        self._state = state
        if state.status.startswith("FINISHED"):
            if self._aborted is None:
                self.abort = state.abort if state.status == ABORTED else None
            # A stopped or aborted job has its reason already.
            if not self.stopping and self._aborted is None:
                self.reason = f"the job ended before its last round ({state.status})"
            return True
        if self._aborted is not None:
            # Its results are available only after its end.
            return self._clock() - self._aborted > ABORTING
        return self._end_if_overdue()

    def _end_if_overdue(self) -> bool:
        """Abort the job if it is lost or overdue; return False: it has not ended."""
        since = self._silent_since
        silent = 0.0 if since is None else self._clock() - since
        if self._state.status == RUNNING and self._not_running >= LOST:
            self.reason = "the server no longer runs the job"
        elif silent > SILENCE:
            self.reason = f"the job did not answer for {SILENCE:.0f} seconds"
        elif overdue := self._progress.overdue():
            self.reason = f"the job {overdue}"
            self.obstacle = self._state.obstacle
            if self.obstacle is not None:
                self.reason += f" ({self.obstacle})"
        elif not self._is_late():
            return False
        self._administrator.abort(self._job)
        self._aborted = self._clock()
        return False

    def pause(self) -> float:
        """Return the seconds until the next status request."""
        is_ending = self.stopping or self._is_to_end or self._aborted is not None
        if is_ending or self._silent_since is not None:
            return SHORTEST
        return self._schedule.pause()

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the job's status report, or None if it does not answer.

        Raises:
            UnreachableError: if the server has not answered for too long, or has an
                older version of the package.
        """
        if self._state.status != RUNNING:
            return None  # It has not begun, or is ending.
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
            self._note_silence()
            return None
        self._not_running = 0
        if report is not None and (missing := FIELDS - report.keys()):
            raise UnreachableError(
                f"The server's report lacks {', '.join(sorted(missing))}: the server "
                "has an older version of fedbilevel than this machine. Install the "
                "same version on both."
            )
        if report is None:
            self._note_silence()
        else:
            self._note_report(report)
        return report

    def _note_report(self, report: dict[str, Any]) -> None:
        self._connection.note_answer()
        self._has_answered, self._silent_since = True, None
        if not self._is_to_end:
            self._progress.at(Stage(*report["stage"]))
        if report["exchange"] is not None:
            self._counted = set(Exchange.parse(report["exchange"]).counted)
            if self._exchanging is None:
                self._exchanging = self._clock()
        # An exchange like the one before is no change: nobody waits for it.
        seen = report["first"], report["failures"]
        if report["records"] or report["exclusions"] or seen != self._seen:
            self._schedule.note_change()
        self._seen = seen

    def _note_silence(self) -> None:
        if self._has_answered and self._silent_since is None:
            self._silent_since = self._clock()

    def notice(self) -> str | None:
        """Return a notice about the server to print, once."""
        notice, self._notice = self._notice, None
        return notice

    def await_end(self) -> None:
        """Expect the job to end, after the measurement of its last round."""
        self._is_to_end = True
        self._progress.at(Stage(-1, ENDING, []))

    def stop(self) -> None:
        """Stop the job after its round; abort it if the round takes longer."""
        self.stopping = True
        self._until = self._until or self._clock() + STOP_SECONDS

    def _miss(self, error: Exception) -> None:
        self._was_cut_off = True
        if self._aborted is None:
            self.reason = str(error)
        # The job may be running although its server does not answer.
        self._has_answered, self._silent_since = False, None
        self._schedule.note_change()
        self._notice = self._connection.note_miss(reason_of(error)) or self._notice

    def _is_late(self) -> bool:
        """Return whether the job should have stopped by now."""
        return self._until is not None and self._clock() > self._until

    def _is_to_stop(self) -> bool:
        """Return whether to stop the job, so that a returned site can join the next."""
        current = self._clock()
        if self.stopping or self._exchanging is None:
            return self.stopping
        # Not at once: a new job takes time to begin, and a site may leave again.
        if current - self._exchanging < self._exchanging - self._submitted:
            return False
        if current - self._checked < CHECK_SECONDS:
            return False
        self._checked = current
        if self._sites() <= self._counted:
            return False  # All participate.
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


def _notice_of(state: JobState) -> str | None:
    """Return the notice of a job that waits, for example for a required site."""
    if state.obstacle is None:
        return None
    reason = state.obstacle.rstrip(".:; ")
    return f"The job has not begun yet; NVIDIA FLARE reports: {reason}."
