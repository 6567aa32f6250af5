"""A scripted server of a federation, for tests of the supervision."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbilevel.deployment.deadlines import EXCHANGE
from fedbilevel.deployment.exclusion_notices import ExclusionNotices
from fedbilevel.federation import Exchange
from fedbilevel.flare.administrator import Administrator, NotRunningError
from fedbilevel.flare.collab_server import RESULTS
from fedbilevel.flare.job_state import Abort, JobState
from fedbilevel.tracking.records import Journal, Record


@dataclass
class Job:
    """A scripted job.

    Attributes:
        records: records that it measures.
        files: result files by name; None to lose all results.
        failures: reason for each failed site, by name.
        refusals: reason for each site that refused it, by name.
        warnings: warning about each site that enrolled, by name.
        status: NVIDIA FLARE's status after its end.
        answers: number of status requests that it answers before its end.
        exchanges: its exchanges before the first request.
        abort: abort that ended it.
        obstacle: reason for which it does not begin until it is aborted.
    """

    records: Sequence[Record] = ()
    files: dict[str, str] | None = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    status: str = "FINISHED:COMPLETED"
    answers: int = 2
    exchanges: Sequence[Exchange] = ()
    abort: Abort | None = None
    obstacle: str | None = None


class ScriptedServer(Administrator):
    """A replacement for `Administrator`, whose server runs one job after another.

    Args:
        sites: connected sites.
        jobs: jobs in their order; the last one is repeated.
    """

    def __init__(self, sites: Sequence[str], jobs: Sequence[Job]) -> None:
        self._sites, self._jobs = set(sites), list(jobs)
        self._answered = 0
        self.submitted = self.requests = 0
        self.is_to_stop = False
        self.required: list[list[str]] = []
        self.aborted: list[str] = []

    @property
    def _job(self) -> Job:
        return self._jobs[min(self.submitted, len(self._jobs)) - 1]

    def connected(self) -> set[str]:
        return set(self._sites)

    def running(self, job: str) -> set[str]:
        return self._sites - self._job.refusals.keys()

    def deployment(self, job: str) -> list[str]:
        message = {**dict.fromkeys(sorted(self._sites), "OK"), **self._job.refusals}
        return [
            "server: OK",
            *(f"{site}: {output}" for site, output in message.items()),
        ]

    def submit(self, directory: Path) -> str:
        self.submitted, self._answered = self.submitted + 1, 0
        (meta,) = directory.glob("**/meta.json")
        self.required.append(json.loads(meta.read_text()).get("mandatory_clients", []))
        return str(self.submitted)

    def state(self, job: str) -> JobState:
        self.requests += 1
        if self._job.obstacle is not None and job not in self.aborted:
            return JobState("SUBMITTED", obstacle=self._job.obstacle)
        if self._answered < self._job.answers:
            return JobState("RUNNING")
        return JobState(self._job.status, self._job.abort)

    def ask(self, job: str, topic: str, request: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        if self._answered >= self._job.answers:
            raise NotRunningError(job)
        self._answered += 1
        self.is_to_stop = self.is_to_stop or request["stop"]
        notices = ExclusionNotices()
        for exchange in self._job.exchanges:
            notices.note(exchange)
        exchanges = [exchange.line for exchange in self._job.exchanges]
        lines = [
            record.line
            for record in self._job.records
            if record.rounds > request["after"]
        ]
        return {
            "records": lines,
            "exclusions": notices.after(request["exclusions"]),
            "exchange": exchanges[-1] if exchanges else None,
            "first": 0,
            "stage": [self._answered, EXCHANGE, []],
            "failures": self._job.failures,
            "warnings": self._job.warnings,
        }

    def abort(self, job: str) -> None:
        self.aborted.append(job)
        self._answered = self._job.answers

    def results(self, job: str, directory: Path) -> Path:
        if self._job.files is None:
            raise ConnectionError("the server did not answer")
        left = directory / RESULTS
        left.mkdir()
        for name, text in self._job.files.items():
            (left / name).write_text(text)
        with Journal(left, first=0) as journal:
            for record in self._job.records:
                journal.write(record)
        return directory
