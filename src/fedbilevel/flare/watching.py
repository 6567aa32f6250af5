"""A job under watch: is it over, lost, or to be followed by one with more sites?"""

import time
from typing import Any

from fedbilevel.flare.administrator import Administrator, NotRunningError
from fedbilevel.flare.collab_server import TOPIC

LOOK = 5.0
"""Seconds between two looks at which sites take part."""
SILENCE = 30.0
"""Seconds without an answer after which a job that had answered is held for lost."""
LOST = 5
"""Answers that a job does not run after which it is lost, though said to be running."""
BEGINNING = 900.0
"""Seconds for a job to begin, in which sites load their data and compile."""


class Watch:
    """Asks a job how it is, and whether it is over, lost, or lacks a site.

    Args:
        administrator: reaches the server.
        job: its number.
        sites: all that could take part.
        round_seconds: that a round takes at most.

    Attributes:
        stopping: whether it is to end after its round.
        words: why it has to be followed by another, if it has.

    Example:
        >>> Watch.__name__
        'Watch'
    """

    def __init__(
        self,
        administrator: Administrator,
        job: str,
        sites: set[str],
        round_seconds: float,
    ) -> None:
        self._administrator, self._job, self._sites = administrator, job, sites
        self._round_seconds = round_seconds
        self._submitted = self._heard = time.monotonic()
        self._exchanging: float | None = None
        self._looked = 0.0
        self._absent: set[str] = set()
        self._was_cut_off = False
        self._not_running = 0
        self._until: float | None = None
        self.stopping = False
        self.words = "the job ended before its last round"

    def over(self) -> bool:
        """Whether there is nothing more to expect of the job."""
        try:
            status = self._administrator.status(self._job)
        except ConnectionError as error:
            self.words, self._was_cut_off = str(error), True
            return self._is_late()
        if status.startswith("FINISHED"):
            # One that was to stop has its reason already, whatever it is called.
            if not self.stopping:
                self.words = f"the job ended before its last round ({status})"
            return True
        silent = time.monotonic() - self._heard
        patience = BEGINNING if self._exchanging is None else SILENCE
        if status == "RUNNING" and self._not_running >= LOST:
            self.words = "the server has lost the job"
        elif silent > patience:
            self.words = f"the job was silent for {patience:.0f} seconds"
        elif not self._is_late():
            return False
        self._administrator.abort(self._job)
        return True

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the job tells, if it does."""
        try:
            told = self._administrator.ask(
                self._job, TOPIC, {**question, "stop": self._is_to_stop()}
            )
        except ConnectionError as error:
            self.words, self._was_cut_off = str(error), True
            return None
        except NotRunningError:
            # So it is for a while whenever a job ends, but what a server that was
            # started again does not run it will never run.
            self._not_running += self._was_cut_off
            return None
        self._not_running = 0
        if told is not None:
            self._heard = time.monotonic()
            if told["exchange"] is not None and self._exchanging is None:
                self._exchanging = self._heard
        return told

    def stop(self) -> None:
        """Have the job end after its round, or after a while if it does not."""
        self.stopping = True
        patience = SILENCE + self._round_seconds
        self._until = self._until or time.monotonic() + patience

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
        absent = (self._administrator.connected() & self._sites) - running
        back = absent & self._absent
        self._absent = absent
        if back and running:
            self.stopping = True
            self.words = f"{', '.join(sorted(back))} can take part again"
        return self.stopping
