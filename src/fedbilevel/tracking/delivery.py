"""Trackers driven through a run, whose troubles are never the run's."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedbilevel.tracking.protocol import Outcome, Tracker
from fedbilevel.tracking.records import Record

logger = logging.getLogger(__name__)

PAUSE = 60.0
"""Seconds before a tracker that had trouble is tried again."""


@contextmanager
def track(
    trackers: Sequence[Tracker],
    name: str,
    settings: Mapping[str, Any],
    resume: bool = False,
) -> Iterator[Callable[[Record], None]]:
    """Begin a run with trackers, give what takes its records, and end it.

    A tracker that cannot begin raises. One that has trouble later is warned about once:
    its records wait, and are sent when it answers again, at the end at the latest. The
    run is told to the trackers as finished, as left (on `GeneratorExit` or Ctrl-C) or
    as failed (on any other exception).

    Args:
        trackers: of the run.
        name: of the run.
        settings: of the run, by dotted name.
        resume: whether it was begun before.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedbilevel import FedBiO, run
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> from fedbilevel.tracking import TensorBoard
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> rounds = run(*task[:1], FedBiO(0.1), *task[1:4], rounds=2)
        >>> directory = Path(tempfile.mkdtemp())
        >>> began = time.monotonic()
        >>> with track([TensorBoard(directory)], "first", {"rate": 0.1}) as record:
        ...     for done in rounds:
        ...         distance = float(task.metrics["distance"](done.x, done.y))
        ...         figures, seconds = {"distance": distance}, time.monotonic() - began
        ...         record(Record(done.number + 1, seconds, done.costs, figures))
        >>> len(list(directory.glob("events.*")))
        1
    """
    begun: list[_Patient] = []
    outcome = Outcome.FAILED
    try:
        for tracker in trackers:
            tracker.begin(name, settings, resume)
            begun.append(_Patient(tracker))

        def record(one: Record) -> None:
            for patient in begun:
                patient.record(one)

        yield record
        outcome = Outcome.FINISHED
    except (GeneratorExit, KeyboardInterrupt):
        outcome = Outcome.STOPPED
        raise
    finally:
        for patient in begun:
            patient.end(outcome)


class _Patient:
    """A tracker, and the records that wait for it."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._waiting: deque[Record] = deque()
        self._next_try = 0.0
        self._warned = False

    def record(self, record: Record) -> None:
        self._waiting.append(record)
        if time.monotonic() >= self._next_try:
            self._try(self._send)

    def end(self, outcome: Outcome) -> None:
        self._try(self._send)
        self._try(lambda: self._tracker.end(outcome))

    def _send(self) -> None:
        while self._waiting:
            self._tracker.record(self._waiting[0])
            self._waiting.popleft()

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        # Libraries of trackers raise what they like, and a run of days must outlive it.
        except Exception as error:
            self._next_try = time.monotonic() + PAUSE
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s had trouble, and is tried again from time to time while the "
                    "run goes on: %s",
                    type(self._tracker).__name__,
                    error,
                )
