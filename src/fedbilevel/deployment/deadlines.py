"""Deadlines on the progress of a job: what it waits for, since when, and how long."""

import time
from collections.abc import Callable
from typing import NamedTuple

from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation.server import ASKINGS

BEGINNING, ENROLMENT = "the job to begin", "the sites to enrol"
EXCHANGE, MEASUREMENT = "an exchange", "a measurement"
ENDING = "the job to end"
BEGIN_SECONDS = 900.0
"""For a job to begin: others may be before it, and processes must find each other."""
END_SECONDS = 30.0
"""For a job to end after its last measurement: it waits for open calls of sites."""
EXCHANGES_A_ROUND = 4
"""Of a round that a job is given the time to finish when it is to stop."""
SERVER_SECONDS = 300.0
"""For the server's own part of an exchange: it compiles, and writes a checkpoint."""


class Stage(NamedTuple):
    """What a job waits for.

    Attributes:
        number: counts stages, so that two alike differ.
        name: one of the constants of this module.
        sites: those whose answers are awaited.

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
    """Seconds for what a job waits for, and for a server that does not answer.

    Attributes:
        enrolment: for the sites to load their data and compile.
        exchange: for the next exchange to end.
        round: for a job that is to stop to finish its round.
        measurement: for one measurement.
        reachable: for the server to answer.

    Example:
        >>> Deadlines(600.0, 360.0, 240.0, 600.0, 3600.0).of(EXCHANGE)
        360.0
    """

    enrolment: float
    exchange: float
    round: float
    measurement: float
    reachable: float

    @classmethod
    def asked_by(cls, experiment: Experiment) -> "Deadlines":
        """Return the deadlines that an experiment asks for."""
        asked = experiment.federation
        return cls(
            # Two timers run: the server's, and the submitter's over it.
            asked.enrolment_timeout + SERVER_SECONDS,
            ASKINGS * asked.timeout + SERVER_SECONDS,
            EXCHANGES_A_ROUND * asked.timeout,
            asked.evaluation_timeout,
            asked.connection_timeout,
        )

    def of(self, stage: str) -> float:
        """Return the seconds for a stage."""
        return {
            BEGINNING: BEGIN_SECONDS,
            ENROLMENT: self.enrolment,
            EXCHANGE: self.exchange,
            MEASUREMENT: self.measurement,
            ENDING: END_SECONDS,
        }[stage]


class Progress:
    """Tells a job that waits too long for one thing from one that goes on.

    Args:
        deadlines: seconds for each stage.
        now: returns seconds, of a clock that does not jump.

    Example:
        >>> times = iter([0.0, 5.0, 900.0])
        >>> deadlines = Deadlines(60.0, 60.0, 60.0, 60.0, 60.0)
        >>> progress = Progress(deadlines, lambda: next(times))
        >>> progress.at(Stage(1, EXCHANGE, ["site-1"]))
        >>> progress.overdue()
        'waited 895 seconds for an exchange (site-1), and 60 are the most'
    """

    def __init__(
        self, deadlines: Deadlines, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadlines, self._now = deadlines, now
        self._since = self._looked = now()
        self._stage = Stage(0, BEGINNING, [])

    def at(self, stage: Stage) -> None:
        """Take note of a job's stage; time begins anew only with another one."""
        self._looked = self._now()
        if stage[:2] != self._stage[:2]:
            self._since = self._looked
        self._stage = stage

    def pause(self) -> None:
        """Leave out the time since the last look: the job was not to be seen.

        What it had waited before stays, or a server that is away now and then would
        have a job that does not get on go on for ever.
        """
        now = self._now()
        self._since += now - self._looked
        self._looked = now

    def overdue(self) -> str | None:
        """Return what the job has waited for too long, and since when; None if not."""
        self._looked = self._now()
        waited = self._looked - self._since
        most = self._deadlines.of(self._stage.name)
        if waited <= most:
            return None
        return (
            f"waited {waited:.0f} seconds for {self._stage}, and {most:.0f} are the "
            "most"
        )
