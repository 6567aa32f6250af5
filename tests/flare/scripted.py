"""A scripted server of a federation, for tests of the supervision."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbilevel.deployment.deadlines import EXCHANGE
from fedbilevel.flare.administrator import Administrator
from fedbilevel.flare.collab_server import RESULTS
from fedbilevel.tracking.records import Journal, Record


@dataclass
class Job:
    """A scripted job.

    Attributes:
        records: records that it measures.
        files: result files by name; None to lose all results.
        failures: reason for each failed site, by name.
        refusals: reason for each site that refused it, by name.
        status: NVIDIA FLARE's status after its end.
        answers: number of status requests that it answers before its end.
    """

    records: Sequence[Record] = ()
    files: dict[str, str] | None = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    status: str = "FINISHED:COMPLETED"
    answers: int = 2


class ScriptedServer(Administrator):
    """A replacement for `Administrator`, whose server runs one job after another.

    Args:
        sites: connected sites.
        jobs: jobs in their order; the last one is repeated.
    """

    def __init__(self, sites: Sequence[str], jobs: Sequence[Job]) -> None:
        self._sites, self._jobs = set(sites), list(jobs)
        self._answered = 0
        self.submitted = 0
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
        return str(self.submitted)

    def status(self, job: str) -> str:
        return self._job.status if self._answered >= self._job.answers else "RUNNING"

    def ask(self, job: str, topic: str, request: dict[str, Any]) -> dict[str, Any]:
        self._answered += 1
        lines = [
            record.line
            for record in self._job.records
            if record.rounds > request["after"]
        ]
        return {
            "records": lines,
            "exchange": None,
            "first": 0,
            "stage": [self._answered, EXCHANGE, []],
            "failures": self._job.failures,
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
