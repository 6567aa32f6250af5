"""Measure a run, write its records and send them to trackers."""

import time
from collections.abc import Callable, Mapping

import jax

from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import Exclusions
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.tracking.records import Journal, Record


class Recorder:
    """A recorder of measurements.

    The time of a run is the time of its rounds, without the time of measurements.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with Journal(Path(tempfile.mkdtemp()), first=0) as journal:
        ...     sent = []
        ...     recorder = Recorder(journal, sent.append, lambda x, y: {"loss": x + y})
        ...     recorder.record(1, Costs(), 1.0, 2.0).metrics
        {'loss': 3.0}
        >>> [record.rounds for record in sent]
        [1]
    """

    def __init__(
        self,
        journal: Journal,
        send: Callable[[Record], None],
        measure: Callable[[Upper, Lower], Mapping[str, float]],
        start: float | None = None,
    ) -> None:
        """Set the journal, the trackers, and the start of the first round.

        Args:
            journal: journal of the run.
            send: function that sends a record to the trackers.
            measure: function that returns the metrics of x and y.
            start: time of the start by `time.monotonic`; default: now.
        """
        self._journal, self._send, self._measure = journal, send, measure
        self._start = time.monotonic() if start is None else start

    def record(
        self,
        rounds: int,
        costs: Costs,
        x: Upper,
        y: Lower,
        seconds: float | None = None,
        exclusions: Exclusions = Exclusions(),
        metrics: Mapping[str, float] | None = None,
        epsilon: float | None = None,
    ) -> Record:
        """Measure unless metrics are given, write the record, and return it.

        Under differential privacy, `epsilon` is one of the metrics.
        """
        jax.block_until_ready((x, y))
        paused = time.monotonic()
        if seconds is None:
            seconds = self._journal.seconds + paused - self._start
        if metrics is None:
            metrics = self._measure(x, y)
        if epsilon is not None:
            metrics = {**metrics, "epsilon": epsilon}
        record = Record(rounds, seconds, costs, metrics, exclusions)
        self._journal.write(record)
        self._send(record)
        self._start += time.monotonic() - paused
        return record
