"""Deadlines on the progress of a job: a timeout for each stage."""

import time
from collections.abc import Callable
from typing import NamedTuple

from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation.secure_messages import STEPS
from fedbilevel.federation.server import MAX_WAITS

BEGINNING, ENROLMENT = "the job to begin", "the sites to enrol"
EXCHANGE, MEASUREMENT = "an exchange", "a measurement"
ENDING = "the job to end"
BEGIN_SECONDS = 900.0
"""Timeout for a job to begin: it may be queued, and its processes must connect."""
END_SECONDS = 30.0
"""Timeout for a job to end after its last measurement: it waits for open calls."""
SERVER_SECONDS = 300.0
"""Timeout for the server's part of an exchange: compilation and a checkpoint."""


class Stage(NamedTuple):
    """The stage of a job: the event that it waits for.

    Attributes:
        number: index of the stage, which distinguishes stages of the same name.
        name: one of the constants of this module.
        sites: sites whose answers are awaited.

    Example:
        >>> str(Stage(3, EXCHANGE, ["site-1"]))
        'an exchange (site-1)'
    """

    number: int
    name: str
    sites: list[str]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.sites)})" if self.sites else self.name


class Deadlines(NamedTuple):
    """The timeouts of a job's stages, in seconds.

    Attributes:
        enrolment: timeout for the sites to load their data and compile.
        exchange: timeout for the next exchange to end.
        measurement: timeout for one measurement.
        reachable: timeout for the server to answer.

    Example:
        >>> Deadlines(600.0, 360.0, 600.0, 3600.0).of(EXCHANGE)
        360.0
    """

    enrolment: float
    exchange: float
    measurement: float
    reachable: float

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> "Deadlines":
        """Return the deadlines that an experiment specifies."""
        settings = experiment.federation
        requests = len(STEPS) if settings.secure_sums else 1
        waits = MAX_WAITS + requests - 1
        return cls(
            # The submitter's timer must outlast the server's.
            settings.enrolment_timeout + SERVER_SECONDS,
            waits * settings.timeout + SERVER_SECONDS,
            settings.evaluation_timeout,
            settings.connection_timeout,
        )

    def of(self, stage: str) -> float:
        """Return the timeout of a stage in seconds."""
        return {
            BEGINNING: BEGIN_SECONDS,
            ENROLMENT: self.enrolment,
            EXCHANGE: self.exchange,
            MEASUREMENT: self.measurement,
            ENDING: END_SECONDS,
        }[stage]


class Progress:
    """The progress of a job: its stage, and the time since the stage began.

    Args:
        deadlines: timeouts of the stages.
        clock: function that returns the seconds of a monotonic clock.

    Example:
        >>> times = iter([0.0, 5.0, 900.0])
        >>> deadlines = Deadlines(60.0, 60.0, 60.0, 60.0)
        >>> progress = Progress(deadlines, lambda: next(times))
        >>> progress.at(Stage(1, EXCHANGE, ["site-1"]))
        >>> progress.overdue()
        'waited 895 seconds for an exchange (site-1); the deadline is 60 seconds'
    """

    def __init__(
        self, deadlines: Deadlines, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadlines, self._clock = deadlines, clock
        self._since = self._checked = clock()
        self._stage = Stage(0, BEGINNING, [])

    def at(self, stage: Stage) -> None:
        """Set the job's stage; the timer restarts only if the stage has changed."""
        self._checked = self._clock()
        if stage[:2] != self._stage[:2]:
            self._since = self._checked
        self._stage = stage

    def pause(self) -> None:
        """Exclude the time since the last check, in which the job was not visible.

        Earlier waiting time still counts. Otherwise a job without progress would never
        be overdue at a server that disconnects repeatedly.
        """
        before, self._checked = self._checked, self._clock()
        self._since += self._checked - before

    def overdue(self) -> str | None:
        """Return a text if the job has waited longer than the deadline, else None."""
        self._checked = self._clock()
        waited = self._checked - self._since
        most = self._deadlines.of(self._stage.name)
        if waited <= most:
            return None
        return (
            f"waited {waited:.0f} seconds for {self._stage}; the deadline is "
            f"{most:.0f} seconds"
        )
