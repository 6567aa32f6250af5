"""A run carried to its end by jobs that may fail, from checkpoint to checkpoint."""

import json
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fedbilevel.engines.federation import Exchange
from fedbilevel.experiments.choices import Experiment
from fedbilevel.experiments.federating import sites_of
from fedbilevel.experiments.folders import LEARNT
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.collab_server import FAILURE, LEFT, RESULTS
from fedbilevel.flare.recipe import FederationRecipe
from fedbilevel.flare.watching import Watch
from fedbilevel.replacing import replacing
from fedbilevel.tracking.records import RECORDS, Record, read_records

POLL = 1.0
"""Seconds between two questions."""
JOB = "job"
"""The file of a run's folder with the number of its latest job."""
EXCHANGES_A_ROUND = 4
"""Of a round that a job is given the time to finish when it is to stop."""
GATHER = 60.0
"""Seconds that a job waits for sites to connect."""


class FederationError(RuntimeError):
    """A run that cannot go on by itself; the message says why.

    Example:
        >>> str(FederationError("no job made progress in 5 attempts"))
        'no job made progress in 5 attempts'
    """


class News(NamedTuple):
    """What has become known of a run.

    Attributes:
        records: what was measured since the last news.
        exchange: the latest exchange.
        words: what happened to its jobs.

    Example:
        >>> News(words="job 7 has begun").records
        ()
    """

    records: Sequence[Record] = ()
    exchange: Exchange | None = None
    words: str | None = None


class _Ended(NamedTuple):
    """How a job ended: why it has to be followed by another, unless it is mistaken."""

    words: str
    failed: bool = True
    mistake: bool = False


class Supervision:
    """Submits jobs until a run is finished.

    Whatever status the server's software gives a job, a run is finished when the
    records of all its rounds are here; a job that ended before is followed by another.

    Args:
        experiment: what is asked for.
        run: its name, of letters and digits.
        folder: where its records and results go.
        by: the administrator who submits its jobs.

    Example:
        >>> Supervision.__name__
        'Supervision'
    """

    def __init__(
        self, experiment: Experiment, run: str, folder: Path, by: Administrator
    ) -> None:
        self._experiment, self._run, self._folder = experiment, run, folder
        self._administrator = by
        self._sites = sites_of(experiment)
        *_, self._measured = -1, *(one.rounds for one in read_records(folder))
        self._furthest = -1
        self._begun = self._measured >= 0
        self._is_to_stop = False

    def stop(self) -> None:
        """Let the job end after its round; then there is no more news."""
        self._is_to_stop = True

    def news(self) -> Generator[News]:
        """Yield news, at times without any, until the run is finished or stopped.

        Raises:
            FederationError: if it cannot go on.
        """
        failures = 0
        attempts = self._experiment.federation.attempts
        while True:
            before = self._furthest
            ended = yield from self._job()
            if ended is None or self._is_to_stop:
                return
            if ended.mistake:
                raise FederationError(ended.words)
            advanced = self._furthest > before or not ended.failed
            failures = 0 if advanced else failures + 1
            if failures == attempts:
                raise FederationError(
                    f"{attempts} jobs in a row made no progress; the last: "
                    f"{ended.words}"
                )
            yield News(words=f"{ended.words}; going on from the last checkpoint")

    def _job(self) -> Generator[News, None, _Ended | None]:
        try:
            present = self._gathered()
            with TemporaryDirectory() as folder:
                job = FederationRecipe(self._experiment, self._run, present)
                job.export(folder)
                self._end_left_over()
                number = self._administrator.submit(Path(folder) / job.job_name)
                (self._folder / JOB).write_text(number)
        except ConnectionError as error:
            time.sleep(POLL)
            return _Ended(str(error))
        round_seconds = EXCHANGES_A_ROUND * self._experiment.federation.timeout
        watch = Watch(self._administrator, number, set(self._sites), round_seconds)
        try:
            yield News(words=f"a job with {', '.join(present)} begins")
            while not watch.over():
                if self._is_to_stop:
                    watch.stop()
                time.sleep(POLL)
                told = watch.ask({"after": self._measured})
                yield from self._told(told or {"records": [], "exchange": None})
        except BaseException:
            # Whatever ends the command, a job that nobody follows would go on.
            with suppress(Exception):
                self._administrator.abort(number)
            raise
        yield from self._told({"records": self._fetch(number), "exchange": None})
        learnt = self._folder / LEARNT
        if self._measured >= self._experiment.rounds and learnt.exists():
            return None
        failure = self._folder / FAILURE
        if failure.exists():
            return _Ended(**json.loads(failure.read_text()))
        return _Ended(watch.words, failed=not watch.stopping)

    def _end_left_over(self) -> None:
        """End the job of a command that was killed: two would be in the way."""
        file = self._folder / JOB
        if file.exists():
            self._administrator.abort(file.read_text())

    def _gathered(self) -> list[str]:
        """Return the sites that are connected, after a while: all, when a run begins.

        Raises:
            FederationError: if they are too few.
            ConnectionError: if the server does not answer.
        """
        until = time.monotonic() + GATHER
        while True:
            connected = self._administrator.connected()
            present = [site for site in self._sites if site in connected]
            if len(present) == len(self._sites):
                return present
            if time.monotonic() > until:
                break
            time.sleep(POLL)
        least = self._experiment.federation.quorum if self._begun else len(self._sites)
        if len(present) >= least:
            return present
        missing = ", ".join(site for site in self._sites if site not in present)
        raise FederationError(
            f"{missing} did not connect in {GATHER:.0f} seconds; a run begins with all "
            "of its sites, and goes on with its quorum."
        )

    def _told(self, told: dict[str, Any]) -> Generator[News]:
        records = [Record.parse(line) for line in told["records"]]
        line = told["exchange"]
        exchange = None if line is None else Exchange.parse(line)
        if records:
            self._measured = max(self._measured, records[-1].rounds)
            self._furthest = max(self._furthest, records[-1].rounds)
        if exchange is not None:
            self._begun = True
            self._furthest = max(self._furthest, exchange.round_number + 1)
        yield News(records, exchange)

    def _fetch(self, job: str) -> list[str]:
        """Bring a job's results here; return the records that are new."""
        failure = self._folder / FAILURE
        failure.unlink(missing_ok=True)
        with TemporaryDirectory() as folder:
            try:
                brought = self._administrator.results(job, Path(folder))
            except ConnectionError:
                return []  # Lost with its job: the next one has them again.
            for name in (*LEFT, FAILURE):
                for found in brought.glob(f"**/{RESULTS}/{name}"):
                    with replacing(self._folder / name) as unfinished:
                        unfinished.write_bytes(found.read_bytes())
            for found in brought.glob(f"**/{RESULTS}/{RECORDS}"):
                records = read_records(found.parent)
                return [one.line for one in records if one.rounds > self._measured]
        return []
