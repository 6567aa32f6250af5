"""Delivery of records to trackers; their errors never end a run."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedbilevel.tracking.protocol import RunStatus, Tracker
from fedbilevel.tracking.records import Record

logger = logging.getLogger(__name__)

PAUSE = 60.0
"""Seconds before a failed tracker is tried again."""


@contextmanager
def track(
    trackers: Sequence[Tracker],
    name: str,
    settings: Mapping[str, Any],
    resume: bool = False,
) -> Iterator[Callable[[Record], None]]:
    """Begin trackers, yield a function that sends records to them, and end them.

    An error of a tracker at the start is raised. A later error is logged once: the
    records wait in a queue and are sent when the tracker responds again, at the latest
    at the end. The outcome is `FINISHED`, `STOPPED` (on `GeneratorExit` or Ctrl-C) or
    `FAILED` (on any other exception).

    Args:
        trackers: trackers of the run.
        name: name of the run.
        settings: settings of the run, by dotted name.
        resume: whether the run is resumed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedbilevel import FedBiO, run
        >>> from fedbilevel.problems import quadratic_task, random_quadratic
        >>> from fedbilevel.tracking import TensorBoard
        >>> task = quadratic_task(random_quadratic(devices=2))
        >>> rounds = run(*task[:1], FedBiO(0.1), *task[1:4], rounds=2)
        >>> directory = Path(tempfile.mkdtemp())
        >>> start = time.monotonic()
        >>> with track([TensorBoard(directory)], "first", {"rate": 0.1}) as record:
        ...     for state in rounds:
        ...         distance = float(task.metrics["distance"](state.x, state.y))
        ...         metrics, seconds = {"distance": distance}, time.monotonic() - start
        ...         record(Record(state.number + 1, seconds, state.costs, metrics))
        >>> len(list(directory.glob("events.*")))
        1
    """
    queues: list[_Queue] = []
    outcome = RunStatus.FAILED
    try:
        for tracker in trackers:
            tracker.begin(name, settings, resume)
            queues.append(_Queue(tracker))

        def send(record: Record) -> None:
            for queue in queues:
                queue.send(record)

        yield send
        outcome = RunStatus.FINISHED
    except (GeneratorExit, KeyboardInterrupt):
        outcome = RunStatus.STOPPED
        raise
    finally:
        for queue in queues:
            queue.end(outcome)


class _Queue:
    """A tracker with the records that it has not received yet."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._waiting: deque[Record] = deque()
        self._next_try = 0.0
        self._warned = False

    def send(self, record: Record) -> None:
        self._waiting.append(record)
        if time.monotonic() >= self._next_try:
            self._try(self._send_all)

    def end(self, outcome: RunStatus) -> None:
        self._try(self._send_all)
        self._try(lambda: self._tracker.end(outcome))

    def _send_all(self) -> None:
        while self._waiting:
            self._tracker.record(self._waiting[0])
            self._waiting.popleft()

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        # Tracker libraries may raise any exception, which must not end a run of days.
        except Exception as error:
            self._next_try = time.monotonic() + PAUSE
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s failed: %s. The run continues, and its records are sent again "
                    "every %.0f seconds. Check the tracker's server.",
                    type(self._tracker).__name__,
                    error,
                    PAUSE,
                )
