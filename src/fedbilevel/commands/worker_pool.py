"""Runs side by side, each in a worker: who does what, and what became of it."""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from fedbilevel.commands.batch_progress import BatchProgress
from fedbilevel.commands.job import Job
from fedbilevel.commands.worker import ENDED, ERROR, Worker
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.run_directory.runs import keep
from fedbilevel.tracking.records import Record

LOOKS_EVERY = 0.2
"""Seconds that `hear` waits for a line."""


class WorkerPool:
    """Workers, and the jobs that they have or wait for.

    Attributes:
        errors: by run directory, the last message of a run.

    Example:
        >>> crew = WorkerPool([], 2, BatchProgress(0))
        >>> crew.fill()
        >>> crew.busy
        False
    """

    def __init__(
        self, jobs: Sequence[Job], processes: int, progress: BatchProgress
    ) -> None:
        """Start nobody yet."""
        self.errors: dict[Path, str] = {}
        self._waiting, self._processes, self._progress = [*jobs], processes, progress
        self._jobs: dict[Worker, Job] = {}
        self._free: dict[Worker, Job] = {}
        self._lines: SimpleQueue[tuple[Worker, str | None]] = SimpleQueue()
        self._interrupted = False

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return bool(self._jobs)

    def fill(self) -> None:
        """Begin as many of the waiting jobs as there are processes for."""
        while self._waiting and len(self._jobs) < self._processes:
            worker, job = self._next()
            self._waiting.remove(job)
            try:
                job.begin()
                with run_lock(job.directory):
                    keep(job.experiment, job.directory)
            except (ValueError, OSError) as error:
                self.errors[job.directory] = str(error)
                self._progress.ended(str(job.directory))
                continue
            if worker is None:
                # A free worker that cannot be used would keep its memory.
                for idle in list(self._free):
                    del self._free[idle]
                    idle.close()
                    idle.join()
                worker = Worker(self._lines)
            self._free.pop(worker, None)
            self._jobs[worker] = job
            self._progress.began(str(job.directory), job.experiment.rounds)
            worker.run(job.directory)

    def hear(self) -> None:
        """Take in one line of a worker, if one comes soon."""
        try:
            worker, line = self._lines.get(timeout=LOOKS_EVERY)
        except Empty:
            return
        job = self._jobs.get(worker)
        if line is None:
            worker.close()
            self._free.pop(worker, None)
        if job is not None and line is not None:
            self._take_in(worker, job, line)
        elif job is not None:
            ending = f"its process ended: {_cause(worker.exit_code)}"
            self.errors.setdefault(job.directory, ending)
            self._end(worker, job)

    def interrupt(self) -> None:
        """End all runs after their round in progress; begin no other."""
        if not self._interrupted:
            self._interrupted = True
            self._waiting.clear()
            for worker in self._jobs:
                worker.interrupt()

    def close(self) -> None:
        """End all workers, those that still have a run at once."""
        for worker in self._jobs:
            worker.kill()
        for worker in self._free:
            worker.close()
        for worker in (*self._jobs, *self._free):
            worker.join()

    def _next(self) -> tuple[Worker | None, Job]:
        """Return a free worker, if one is of use, and a job for it.

        A worker keeps what it has compiled, so it goes on with the same file.
        """
        for worker, last in self._free.items():
            for job in self._waiting:
                if job.file == last.file:
                    return worker, job
        begun = {job.file for job in self._jobs.values()}
        new = [job for job in self._waiting if job.file not in begun]
        job = (new or self._waiting)[0]
        able = [one for one, last in self._free.items() if last.cores == job.cores]
        return (able[0] if able else None), job

    def _take_in(self, worker: Worker, job: Job, line: str) -> None:
        found = _parsed(line)
        if isinstance(found, Record):
            self._progress.measured(str(job.directory), found)
        elif found == ENDED:
            self._end(worker, job)
            self._free[worker] = job
        elif line.startswith(ERROR):
            self.errors[job.directory] = line.removeprefix(ERROR)
        elif job.directory in self.errors:
            self.errors[job.directory] += f"\n{line}"
        # JSON that is no record is for scripts.
        elif not (self._interrupted or line.startswith("{")):
            print(f"{job.directory}: {line}", file=sys.stderr, flush=True)

    def _end(self, worker: Worker, job: Job) -> None:
        del self._jobs[worker]
        self._progress.ended(str(job.directory))


def _parsed(line: str) -> Record | str | None:
    """Return a record, or that a run has ended; None for any other line."""
    try:
        found = json.loads(line)
        return ENDED if ENDED in found else Record.parse(line)
    except (ValueError, KeyError, TypeError):
        return None


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    hint = "; if memory ran out, give fewer --jobs" if name == "SIGKILL" else ""
    return f"{name}{hint}"
