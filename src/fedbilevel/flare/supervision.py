"""The supervision of a run: submit jobs until the run is finished."""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.deployment.connection import Connection, UnreachableError
from fedbilevel.deployment.deadlines import Deadlines
from fedbilevel.deployment.exclusion_notices import Exclusion, exclusions_in
from fedbilevel.deployment.suspensions import SUSPENSIONS, Suspensions
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.run_directory.layout import EXCHANGES, SOLUTION
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import Exchange
from fedbilevel.flare.administrator import Administrator, reason_of
from fedbilevel.flare.collab_server import FAILURE, LEFT, NOTICES, RESULTS
from fedbilevel.flare.job_monitor import JobMonitor
from fedbilevel.flare.recipe import FederationRecipe
from fedbilevel.flare.refusals import blocking_sites, explain_refusals, refusals_of
from fedbilevel.flare.site_failures import FAILURES, failures_in
from fedbilevel.plurals import count_noun
from fedbilevel.tracking.records import RECORDS, Record, read_records

POLL = 1.0
"""Seconds between two looks at Ctrl-C, and at a server that does not answer."""
JOB = "job"
"""File of a run directory with the id of its latest job."""
IDLE = "is connected, but does not run the job"
NOT_TAKEN = "could not be given the job before the deadline"
CONNECT_SECONDS = 60.0
"""Timeout in seconds for sites to connect before a job is submitted."""


class FederationError(RuntimeError):
    """The run cannot continue without a change by the user."""


class JobEvent(NamedTuple):
    """An event of a run.

    Attributes:
        records: measurements since the last event.
        exchange: latest exchange.
        exclusions: exclusions since the last event; a resumed run may repeat some.
        message: text about the run's jobs, to be printed.
        rewound: number of rounds after which earlier records are void, because the run
            went back to a checkpoint.
    """

    records: Sequence[Record] = ()
    exchange: Exchange | None = None
    exclusions: Sequence[Exclusion] = ()
    message: str | None = None
    rewound: int | None = None


class _JobEnd(NamedTuple):
    """The end of a job: its reason, and whether another job can help."""

    reason: str
    failed: bool = True
    mistake: bool = False


class Supervision:
    """A supervisor that submits jobs until a run is finished.

    A run is finished when the records of all its rounds have arrived; NVIDIA FLARE's
    status of a job does not matter. If a job ends before, another one follows. A site
    that failed in a job is suspended from the next ones (`suspensions`), if enough
    others remain. At the end the records equal those of the server.

    Args:
        experiment: experiment to run.
        run: name of the run, of letters and digits.
        directory: directory of its records and results.
        administrator: connection to the server.
        clock: function that returns the seconds of a monotonic clock.
        sleep: function that waits for a number of seconds.
    """

    def __init__(
        self,
        experiment: Experiment,
        run: str,
        directory: Path,
        administrator: Administrator,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._experiment, self._run, self._directory = experiment, run, directory
        self._administrator = administrator
        self._sites = sites_of(experiment)
        self._suspensions = Suspensions(directory, clock)
        self._deadlines = Deadlines.from_experiment(experiment)
        self._connection = Connection(self._deadlines.reachable, clock)
        *_, self._measured = -1, *(record.rounds for record in read_records(directory))
        self._furthest = -1
        self._begun = self._measured >= 0
        self._is_to_stop = False
        self._warned: set[str] = set()

    def stop(self) -> None:
        """End the job after its round; then the events end."""
        self._is_to_stop = True

    def events(self) -> Generator[JobEvent]:
        """Yield events, some of them empty, until the run is finished or stopped.

        Raises:
            FederationError: if the run cannot continue.
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
                raise FederationError(ended.reason)
            reason = ended.reason.rstrip(".")
            advanced = self._furthest > before or not ended.failed
            failures = 0 if advanced else failures + 1
            if failures == attempts:
                raise FederationError(
                    f"{count_noun(attempts, 'job')} in a row made no progress. The "
                    f"last one: {reason}. {self._suspensions.reasons()}".rstrip()
                )
            yield JobEvent(message=f"{reason}; resuming from the last checkpoint")

    def _job(self) -> Generator[JobEvent, None, _JobEnd | None]:
        present, number = yield from self._submit()
        monitor = JobMonitor(
            self._administrator,
            number,
            present,
            lambda: set(self._sites) - self._suspensions.names(),
            self._deadlines,
            self._connection,
            self._clock,
        )
        first: int | None = None
        excluded = 0
        refused: Mapping[str, str] | None = None
        try:
            yield JobEvent(message=f"A job with {', '.join(present)} starts.")
            while not monitor.over():
                if self._is_to_stop:
                    monitor.stop()
                if self._measured >= self._experiment.rounds:
                    monitor.await_end()
                yield from self._pause(monitor)
                report = monitor.ask({"after": self._measured, "exclusions": excluded})
                if report is None:
                    continue
                if refused is None:
                    refused = refusals_of(self._administrator, number, self._sites)
                    yield from self._suspend(number, refused)
                if first is None and report["first"] is not None:
                    first = report["first"]
                    yield self._rewind(first or -1)
                    continue
                excluded += len(report["exclusions"])
                exclusions = [Exclusion(*item) for item in report["exclusions"]]
                yield JobEvent(exclusions=exclusions)
                yield from self._note_progress(report["records"], report["exchange"])
                yield from self._warn(report["warnings"])
                yield from self._suspend(number, report["failures"])
                yield from self._suspend(number, dict.fromkeys(monitor.idle, IDLE))
        except BaseException:
            # Without its supervisor the job would continue.
            with suppress(Exception):
                self._administrator.abort(number)
            raise
        if monitor.obstacle is not None:
            blocking = blocking_sites(monitor.obstacle, present)
            yield from self._suspend(number, dict.fromkeys(blocking, NOT_TAKEN))
        yield from self._fetch(number)
        solution = self._directory / SOLUTION
        if self._measured >= self._experiment.rounds and solution.exists():
            return None
        if monitor.abort is not None:
            raise FederationError(
                f"{monitor.abort.user} aborted job {number} at {monitor.abort.time}, "
                "by the clock of the server. Ask for the reason, and give the same "
                "command again to resume the run from its last checkpoint."
            )
        failure = self._directory / FAILURE
        if failure.exists():
            return _JobEnd(**json.loads(failure.read_text()))
        if refused is None:
            refused = refusals_of(self._administrator, number, self._sites)
            yield from self._suspend(number, refused)
        quorum = self._experiment.federation.quorum
        if reason := explain_refusals(refused, self._sites, quorum):
            return _JobEnd(reason, mistake=True)
        return _JobEnd(monitor.reason, failed=not monitor.stopping)

    def _pause(self, monitor: JobMonitor) -> Generator[JobEvent]:
        """Wait until the next status request; Ctrl-C shortens the time."""
        until = self._clock() + monitor.pause()
        while True:
            yield JobEvent(message=monitor.notice())
            rest = until - self._clock()
            if self._is_to_stop and not monitor.stopping:
                monitor.stop()
                return
            if rest <= 0.0:
                return
            self._sleep(min(POLL, rest))

    def _submit(self) -> Generator[JobEvent, None, tuple[Sequence[str], str]]:
        """Submit a job once the server answers; return its sites and its id."""
        while True:
            try:
                present = self._await_sites()
                with TemporaryDirectory() as directory:
                    # A job does not wait for other sites. Later it begins without them.
                    required = () if self._begun else present
                    job = FederationRecipe(
                        self._experiment, self._run, present, required
                    )
                    job.export(directory)
                    self._abort_previous()
                    number = self._administrator.submit(Path(directory) / job.job_name)
                    (self._directory / JOB).write_text(number)
                # Remove an earlier job's results: those of this one are downloaded.
                for name in (SOLUTION, FAILURE):
                    (self._directory / name).unlink(missing_ok=True)
            except ConnectionError as error:
                yield JobEvent(message=self._connection.note_miss(reason_of(error)))
                self._sleep(POLL)
            else:
                self._connection.note_answer()
                return present, number

    def _abort_previous(self) -> None:
        """Abort the job of a command that was killed: two jobs would conflict."""
        file = self._directory / JOB
        if file.exists():
            self._administrator.abort(file.read_text())

    def _await_sites(self) -> list[str]:
        """Wait for the sites to connect, and return them: all when a run begins.

        Suspended sites are excluded if a quorum of others is connected.

        Raises:
            FederationError: if too few sites connect.
            ConnectionError: if the server does not answer.
        """
        until = self._clock() + CONNECT_SECONDS
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
            if self._clock() > until:
                break
            self._sleep(POLL)
        least = quorum if self._begun else len(wanted)
        if len(present) >= least:
            return present
        missing = ", ".join(site for site in wanted if site not in present)
        raise FederationError(
            f"{missing} did not connect in {CONNECT_SECONDS:.0f} seconds, but a run "
            "begins with all of its sites (and resumes with its quorum). Start these "
            "sites, or remove them from federation.sites."
        )

    def _note_progress(
        self, lines: Sequence[str], exchange: str | None
    ) -> Generator[JobEvent]:
        records = [Record.parse(line) for line in lines]
        latest = None if exchange is None else Exchange.parse(exchange)
        if records:
            self._measured = max(self._measured, records[-1].rounds)
            self._furthest = max(self._furthest, records[-1].rounds)
        if latest is not None:
            self._begun = True
            self._furthest = max(self._furthest, latest.round_number + 1)
        yield JobEvent(records, latest)

    def _suspend(self, job: str, failures: Mapping[str, str]) -> Generator[JobEvent]:
        """Suspend the sites that have failed in a job; yield a message for each."""
        file = self._directory / SUSPENSIONS
        for text in self._suspensions.note(job, failures):
            yield JobEvent(message=f"{text}, or until its entry in {file} is removed")

    def _warn(self, warnings: Mapping[str, str]) -> Generator[JobEvent]:
        """Yield a message for each new warning about a site, or about the run."""
        for name, text in warnings.items():
            if (message := f"{name}: {text}") not in self._warned:
                self._warned.add(message)
                yield JobEvent(message=message)

    def _rewind(self, rounds: int) -> JobEvent:
        """Forget records after `rounds`: the run went back to a checkpoint."""
        known = (record.rounds for record in read_records(self._directory))
        *_, self._measured = -1, *(count for count in known if count <= rounds)
        return JobEvent(rewound=rounds)

    def _fetch(self, job: str) -> Generator[JobEvent]:
        """Download a job's results, and replace the local records by the server's."""
        exchanges = self._directory / EXCHANGES
        known = exchanges.read_text().splitlines() if exchanges.exists() else []
        with TemporaryDirectory() as directory:
            try:
                results = self._administrator.results(job, Path(directory))
            except ConnectionError:
                return  # The next job has these results again.
            for name in (*LEFT, FAILURE):
                for file in results.glob(f"**/{RESULTS}/{name}"):
                    atomic_write(self._directory / name, file.read_bytes())
            for file in results.glob(f"**/{RESULTS}/{EXCHANGES}"):
                # The last ones were not polled.
                yield JobEvent(exclusions=exclusions_in(file, set(known)))
            for file in results.glob(f"**/{RESULTS}/{NOTICES}"):
                for text in file.read_text().splitlines():
                    yield from self._warn({"the run": text})
            for file in results.glob(f"**/{FAILURES}"):
                yield from self._suspend(job, failures_in(file.parent))
            for file in results.glob(f"**/{RESULTS}/{RECORDS}"):
                yield from self._replace_records(list(read_records(file.parent)))

    def _replace_records(self, records: Sequence[Record]) -> Generator[JobEvent]:
        """Replace the local records that differ from the server's."""
        pairs = zip(read_records(self._directory), records, strict=False)
        same = takewhile(lambda pair: pair[0].line == pair[1].line, pairs)
        *_, agreed = -1, *(record.rounds for record, _ in same)
        yield self._rewind(agreed)
        yield from self._note_progress(
            [record.line for record in records if record.rounds > agreed], None
        )
