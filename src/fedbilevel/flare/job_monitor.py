"""A job under watch: is it over, lost or late, or does it lack a site?"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from fedbilevel.deployment.connection import Connection
from fedbilevel.deployment.deadlines import ENDING, Deadlines, Progress, Stage
from fedbilevel.flare.administrator import Administrator, NotRunningError
from fedbilevel.flare.collab_server import TOPIC

LOOK = 5.0
"""Seconds between two looks at which sites take part."""
SILENCE = 30.0
"""Seconds without an answer after which a job that had answered is held for lost."""
ABORTING = 30.0
"""Seconds for a job that is aborted to end."""
LOST = 5
"""Answers that a job does not run after which it is lost, though said to be running."""


class JobMonitor:
    """Asks a job how it is, and whether it is over, lost, late, or lacks a site.

    Args:
        administrator: reaches the server.
        job: its number.
        present: the sites that it was submitted for.
        sites: returns all that could take part now.
        deadlines: seconds for what a job waits for.
        reach: counts the seconds for which the server does not answer.

    Attributes:
        stopping: whether it is to end after its round.
        reason: why it has to be followed by another, if it has.
        idle: sites of the job that are connected but do not run it.

    Example:
        >>> JobMonitor.__name__
        'JobMonitor'
    """

    def __init__(
        self,
        administrator: Administrator,
        job: str,
        present: Iterable[str],
        sites: Callable[[], set[str]],
        deadlines: Deadlines,
        reach: Connection,
    ) -> None:
        self._administrator, self._job, self._sites = administrator, job, sites
        self._present = set(present)
        self._deadlines, self._reach = deadlines, reach
        self._progress = Progress(deadlines)
        self._submitted = time.monotonic()
        self._heard: float | None = None
        self._exchanging: float | None = None
        self._looked = 0.0
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
        """Return whether there is nothing more to expect of the job.

        Raises:
            UnreachableError: the server has not answered for too long.
        """
        try:
            status = self._administrator.status(self._job)
        except ConnectionError as error:
            self._miss(error)
            # Nor is the job to be seen. If the server answers and only the job cannot
            # be asked, time goes on.
            self._progress.pause()
            return self._is_late()
        self._reach.answered()
        if status.startswith("FINISHED"):
            # One that was to stop has its reason already, whatever it is called.
            if not self.stopping and self._aborted is None:
                self.reason = f"the job ended before its last round ({status})"
            return True
        if self._aborted is not None:
            # Before its end it has left no results.
            return time.monotonic() - self._aborted > ABORTING
        silent = 0.0 if self._heard is None else time.monotonic() - self._heard
        if status == "RUNNING" and self._not_running >= LOST:
            self.reason = "the server has lost the job"
        elif silent > SILENCE:
            self.reason = f"the job was silent for {SILENCE:.0f} seconds"
        elif overdue := self._progress.overdue():
            self.reason = f"the job {overdue}"
        elif not self._is_late():
            return False
        self._administrator.abort(self._job)
        self._aborted = time.monotonic()
        return False

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the job tells, if it does.

        Raises:
            UnreachableError: the server has not answered for too long.
        """
        try:
            told = self._administrator.ask(
                self._job, TOPIC, {**question, "stop": self._is_to_stop()}
            )
        except ConnectionError as error:
            self._miss(error)
            return None
        except NotRunningError:
            # So it is for a while whenever a job ends, but what a server that was
            # started again does not run it will never run.
            self._not_running += self._was_cut_off
            return None
        self._not_running = 0
        if told is not None:
            self._heard = time.monotonic()
            if not self._is_to_end:
                self._progress.at(Stage(*told["stage"]))
            if told["exchange"] is not None and self._exchanging is None:
                self._exchanging = self._heard
        return told

    def notice(self) -> str | None:
        """Return what is to be said of the server, once."""
        notice, self._notice = self._notice, None
        return notice

    def await_end(self) -> None:
        """Expect the job to end, as its last round is measured."""
        self._is_to_end = True
        self._progress.at(Stage(-1, ENDING, []))

    def stop(self) -> None:
        """Have the job end after its round, or after a while if it does not."""
        self.stopping = True
        patience = SILENCE + self._deadlines.round
        self._until = self._until or time.monotonic() + patience

    def _miss(self, error: Exception) -> None:
        self._was_cut_off = True
        if self._aborted is None:
            self.reason = str(error)
        # Nor could the job answer, which may well go on.
        self._heard = None
        self._notice = self._reach.missed(str(error)) or self._notice

    def _is_late(self) -> bool:
        """Whether it was to stop, and has not."""
        return self._until is not None and time.monotonic() > self._until

    def _is_to_stop(self) -> bool:
        """Whether a site is back that cannot join the job, which is then made anew."""
        now = time.monotonic()
        if self.stopping or self._exchanging is None:
            return self.stopping
        # Not at once: a job takes its time to begin, and a site may come and go.
        if now - self._exchanging < self._exchanging - self._submitted:
            return False
        if now - self._looked < LOOK:
            return False
        self._looked = now
        running = self._administrator.running(self._job)
        absent = (self._administrator.connected() & self._sites()) - running
        back = absent & self._absent
        self._absent = absent
        if not running:
            return False
        # One that was asked for this job has left it, or has not taken it: the job is
        # made anew for it when it was left out for a while, each time for longer. Or
        # else a site that takes no job would have every job made anew at once.
        idle = (back & self._present) - self.idle
        self.idle |= idle
        back -= idle
        if back:
            self.stopping = True
            self.reason = f"{', '.join(sorted(back))} can take part again"
        return self.stopping
