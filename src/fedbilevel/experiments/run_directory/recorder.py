"""Measurements taken, written down and told to trackers, off the run's own time."""

import time
from collections.abc import Callable, Mapping

import jax

from fedbilevel.engines.costs import Costs
from fedbilevel.engines.exclusions import Exclusions
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.tracking.records import Journal, Record


class Recorder:
    """Takes records of a run.

    A run's time is that of its rounds, however often and however long it is measured.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with Journal(Path(tempfile.mkdtemp()), first=0) as journal:
        ...     told = []
        ...     recorder = Recorder(journal, told.append, lambda x, y: {"loss": x + y})
        ...     recorder.record(1, Costs(), 1.0, 2.0).figures
        {'loss': 3.0}
        >>> [record.rounds for record in told]
        [1]
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[Record], None],
        measure: Callable[[Upper, Lower], Mapping[str, float]],
        began: float | None = None,
    ) -> None:
        """Write to a journal, tell trackers; rounds began now, or at that time."""
        self._journal, self._tell, self._measure = journal, tell, measure
        self._began = time.monotonic() if began is None else began

    def record(
        self,
        rounds: int,
        costs: Costs,
        x: Upper,
        y: Lower,
        seconds: float | None = None,
        exclusions: Exclusions = Exclusions(),
        figures: Mapping[str, float] | None = None,
    ) -> Record:
        """Measure after so many rounds, unless figures are given; return the record."""
        jax.block_until_ready((x, y))
        paused = time.monotonic()
        if seconds is None:
            seconds = self._journal.seconds + paused - self._began
        if figures is None:
            figures = self._measure(x, y)
        record = Record(rounds, seconds, costs, figures, exclusions)
        self._journal.write(record)
        self._tell(record)
        self._began += time.monotonic() - paused
        return record
