"""A run carried to its end by jobs that may fail, from checkpoint to checkpoint."""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.deployment.connection import Connection, UnreachableError
from fedbilevel.deployment.deadlines import Deadlines
from fedbilevel.deployment.suspensions import LEFT_OUT, Suspensions
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import Exchange
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.collab_server import FAILURE, LEFT, RESULTS
from fedbilevel.flare.job_monitor import JobMonitor
from fedbilevel.flare.recipe import FederationRecipe
from fedbilevel.flare.refusals import refusals_of, too_many
from fedbilevel.flare.site_failures import FAILURES, failures_in
from fedbilevel.tracking.records import RECORDS, Record, read_records

POLL = 1.0
"""Seconds between two questions."""
JOB = "job"
"""The file of a run's directory with the number of its latest job."""
IDLE = "is connected, but does not run the job"
GATHER = 60.0
"""Seconds that a job waits for sites to connect."""


class FederationError(RuntimeError):
    """A run that cannot go on by itself; the message says why.

    Example:
        >>> str(FederationError("no job made progress in 5 attempts"))
        'no job made progress in 5 attempts'
    """


class JobEvent(NamedTuple):
    """What has become known of a run.

    Attributes:
        rewound: rounds after which earlier records no longer hold: the run went back
            to a checkpoint.
        records: what was measured since the last news.
        exchange: the latest exchange.
        words: what happened to its jobs.

    Example:
        >>> JobEvent(words="job 7 has begun").records
        ()
    """

    records: Sequence[Record] = ()
    exchange: Exchange | None = None
    words: str | None = None
    rewound: int | None = None


class _Ended(NamedTuple):
    """How a job ended: why it has to be followed by another, unless it is mistaken."""

    words: str
    failed: bool = True
    mistake: bool = False


class Supervision:
    """Submits jobs until a run is finished.

    Whatever status the server's software gives a job, a run is finished when the
    records of all its rounds are here; a job that ended before is followed by another.
    A site that failed in a job is left out of the next ones for a while
    (`suspensions`), if enough others are left. In the end the records are those of the
    server.

    Args:
        experiment: what is asked for.
        run: its name, of letters and digits.
        directory: where its records and results go.
        by: the administrator who submits its jobs.

    Example:
        >>> Supervision.__name__
        'Supervision'
    """

    def __init__(
        self, experiment: Experiment, run: str, directory: Path, by: Administrator
    ) -> None:
        self._experiment, self._run, self._directory = experiment, run, directory
        self._administrator = by
        self._sites = sites_of(experiment)
        self._suspensions = Suspensions(directory)
        self._deadlines = Deadlines.asked_by(experiment)
        self._reach = Connection(self._deadlines.reachable)
        *_, self._measured = -1, *(one.rounds for one in read_records(directory))
        self._furthest = -1
        self._begun = self._measured >= 0
        self._is_to_stop = False

    def stop(self) -> None:
        """Let the job end after its round; then there is no more news."""
        self._is_to_stop = True

    def news(self) -> Generator[JobEvent]:
        """Yield news, at times without any, until the run is finished or stopped.

        Raises:
            FederationError: if it cannot go on.
        """
        try:
            yield from self._jobs()
        except UnreachableError as error:
            raise FederationError(str(error)) from None

    def _jobs(self) -> Generator[JobEvent]:
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
                    f"{ended.words.rstrip('.')}. {self._suspensions.reasons()}".rstrip()
                )
            words = ended.words.rstrip(".")
            yield JobEvent(words=f"{words}; going on from the last checkpoint")

    def _job(self) -> Generator[JobEvent, None, _Ended | None]:
        present, number = yield from self._submitted()
        watch = JobMonitor(
            self._administrator,
            number,
            present,
            lambda: set(self._sites) - self._suspensions.names(),
            self._deadlines,
            self._reach,
        )
        first: int | None = None
        refused: Mapping[str, str] | None = None
        try:
            yield JobEvent(words=f"a job with {', '.join(present)} begins")
            while not watch.over():
                if self._is_to_stop:
                    watch.stop()
                if self._measured >= self._experiment.rounds:
                    watch.await_end()
                yield JobEvent(words=watch.notice())
                time.sleep(POLL)
                told = watch.ask({"after": self._measured})
                if told is None:
                    continue
                if refused is None:
                    refused = refusals_of(self._administrator, number, self._sites)
                    yield from self._left_out(number, refused)
                if first is None and told["first"] is not None:
                    first = told["first"]
                    yield self._rewound(first or -1)
                    continue
                yield from self._told(told["records"], told["exchange"])
                yield from self._left_out(number, told["failures"])
                yield from self._left_out(number, dict.fromkeys(watch.idle, IDLE))
        except BaseException:
            # Whatever ends the command, a job that nobody follows would go on.
            with suppress(Exception):
                self._administrator.abort(number)
            raise
        yield from self._fetch(number)
        learnt = self._directory / SOLUTION
        if self._measured >= self._experiment.rounds and learnt.exists():
            return None
        failure = self._directory / FAILURE
        if failure.exists():
            return _Ended(**json.loads(failure.read_text()))
        if refused is None:
            refused = refusals_of(self._administrator, number, self._sites)
            yield from self._left_out(number, refused)
        quorum = self._experiment.federation.quorum
        if reason := too_many(refused, self._sites, quorum):
            return _Ended(reason, mistake=True)
        return _Ended(watch.words, failed=not watch.stopping)

    def _submitted(self) -> Generator[JobEvent, None, tuple[Sequence[str], str]]:
        """Submit a job once the server answers; return its sites, and its number."""
        while True:
            try:
                present = self._gathered()
                with TemporaryDirectory() as directory:
                    job = FederationRecipe(self._experiment, self._run, present)
                    job.export(directory)
                    self._end_left_over()
                    number = self._administrator.submit(Path(directory) / job.job_name)
                    (self._directory / JOB).write_text(number)
                # Of an earlier job: what this one leaves is fetched, or is not here.
                for name in (SOLUTION, FAILURE):
                    (self._directory / name).unlink(missing_ok=True)
            except ConnectionError as error:
                yield JobEvent(words=self._reach.missed(str(error)))
                time.sleep(POLL)
            else:
                self._reach.answered()
                return present, number

    def _end_left_over(self) -> None:
        """End the job of a command that was killed: two would be in the way."""
        file = self._directory / JOB
        if file.exists():
            self._administrator.abort(file.read_text())

    def _gathered(self) -> list[str]:
        """Return the sites that are connected, after a while: all, when a run begins.

        Those that are left out for a while are not among them, if enough others are.

        Raises:
            FederationError: if they are too few.
            ConnectionError: if the server does not answer.
        """
        until = time.monotonic() + GATHER
        quorum = self._experiment.federation.quorum
        while True:
            connected = self._administrator.connected()
            suspended = self._suspensions.names()
            if len(connected.intersection(self._sites) - suspended) < quorum:
                suspended = set()
            wanted = [site for site in self._sites if site not in suspended]
            present = [site for site in wanted if site in connected]
            if present == wanted:
                return present
            if time.monotonic() > until:
                break
            time.sleep(POLL)
        least = quorum if self._begun else len(wanted)
        if len(present) >= least:
            return present
        missing = ", ".join(site for site in wanted if site not in present)
        raise FederationError(
            f"{missing} did not connect in {GATHER:.0f} seconds; a run begins with all "
            "of its sites, and goes on with its quorum. Start them, or take them off "
            "sites in [federation]."
        )

    def _told(self, lines: Sequence[str], exchange: str | None) -> Generator[JobEvent]:
        records = [Record.parse(line) for line in lines]
        latest = None if exchange is None else Exchange.parse(exchange)
        if records:
            self._measured = max(self._measured, records[-1].rounds)
            self._furthest = max(self._furthest, records[-1].rounds)
        if latest is not None:
            self._begun = True
            self._furthest = max(self._furthest, latest.round_number + 1)
        yield JobEvent(records, latest)

    def _left_out(self, job: str, failures: Mapping[str, str]) -> Generator[JobEvent]:
        """Leave out the sites that have failed in a job, and say so."""
        for sentence in self._suspensions.note(job, failures):
            file = self._directory / LEFT_OUT
            yield JobEvent(words=f"{sentence}, or until its entry in {file} is removed")

    def _rewound(self, rounds: int) -> JobEvent:
        """Ask again for what follows so many rounds: the run went back there."""
        known = (one.rounds for one in read_records(self._directory))
        *_, self._measured = -1, *(one for one in known if one <= rounds)
        return JobEvent(rewound=rounds)

    def _fetch(self, job: str) -> Generator[JobEvent]:
        """Bring a job's results here; its records take the place of those here."""
        with TemporaryDirectory() as directory:
            try:
                brought = self._administrator.results(job, Path(directory))
            except ConnectionError:
                return  # Lost with its job: the next one has them again.
            for name in (*LEFT, FAILURE):
                for found in brought.glob(f"**/{RESULTS}/{name}"):
                    with atomic_replace(self._directory / name) as unfinished:
                        unfinished.write_bytes(found.read_bytes())
            for found in brought.glob(f"**/{FAILURES}"):
                yield from self._left_out(job, failures_in(found.parent))
            for found in brought.glob(f"**/{RESULTS}/{RECORDS}"):
                yield from self._replaced(list(read_records(found.parent)))

    def _replaced(self, records: Sequence[Record]) -> Generator[JobEvent]:
        """Let the server's records take the place of those that differ from them."""
        pairs = zip(read_records(self._directory), records, strict=False)
        same = takewhile(lambda pair: pair[0].line == pair[1].line, pairs)
        *_, agreed = -1, *(mine.rounds for mine, _ in same)
        yield self._rewound(agreed)
        yield from self._told(
            [one.line for one in records if one.rounds > agreed], None
        )
