"""A pool of worker processes for parallel runs."""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote

from fedbilevel.commands.batch_progress import BatchProgress
from fedbilevel.commands.jobs import Job
from fedbilevel.commands.worker import ENDED, ERROR, Worker
from fedbilevel.experiments.run_directory.lock import run_lock
from fedbilevel.experiments.run_directory.runs import keep
from fedbilevel.tracking.records import Record

POLL_SECONDS = 0.2
"""Seconds that `read_line` waits for a line."""


class WorkerPool:
    """Workers with their jobs, and the queue of waiting jobs.

    Attributes:
        errors: last error message of each run, by run directory.

    Example:
        >>> pool = WorkerPool([], 2, BatchProgress(0))
        >>> pool.start_jobs()
        >>> pool.busy
        False
    """

    def __init__(
        self, jobs: Sequence[Job], processes: int, progress: BatchProgress
    ) -> None:
        """Queue jobs; `start_jobs` starts workers."""
        self.errors: dict[Path, str] = {}
        self._waiting, self._processes, self._progress = [*jobs], processes, progress
        self._jobs: dict[Worker, Job] = {}
        self._free: dict[Worker, Job] = {}
        self._lines: SimpleQueue[tuple[Worker, str | None]] = SimpleQueue()
        self._interrupted = False

    @property
    def busy(self) -> bool:
        """True if a worker has a job."""
        return bool(self._jobs)

    def start_jobs(self) -> None:
        """Start waiting jobs, up to the number of processes."""
        while self._waiting and len(self._jobs) < self._processes:
            worker, job = self._next()
            self._waiting.remove(job)
            try:
                job.begin()
                with run_lock(job.directory):
                    keep(job.experiment, job.directory)
            except (ValueError, OSError) as error:
                self.errors[job.directory] = str(error)
                self._progress.finish(str(job.directory))
                continue
            if worker is None:
                # A free worker that cannot be used still occupies memory.
                for idle in list(self._free):
                    del self._free[idle]
                    idle.close()
                    idle.join()
                worker = Worker(self._lines)
            self._free.pop(worker, None)
            self._jobs[worker] = job
            self._progress.add(str(job.directory), job.experiment.rounds)
            worker.run(job.directory)

    def read_line(self) -> None:
        """Process one line of a worker; return after `POLL_SECONDS` without one."""
        try:
            worker, line = self._lines.get(timeout=POLL_SECONDS)
        except Empty:
            return
        job = self._jobs.get(worker)
        if line is None:
            worker.close()
            self._free.pop(worker, None)
        if job is not None and line is not None:
            self._process_line(worker, job, line)
        elif job is not None:
            message = _death(worker.exit_code, job.directory)
            self.errors.setdefault(job.directory, message)
            self._end(worker, job)

    def interrupt(self) -> None:
        """Stop all runs after their current round; start no other."""
        if not self._interrupted:
            self._interrupted = True
            self._waiting.clear()
            for worker in self._jobs:
                worker.interrupt()

    def close(self) -> None:
        """End all workers; those with a job are killed."""
        for worker in self._jobs:
            worker.kill()
        for worker in self._free:
            worker.close()
        for worker in (*self._jobs, *self._free):
            worker.join()

    def _next(self) -> tuple[Worker | None, Job]:
        """Return the next job, and a free worker for it if there is one.

        A worker caches compiled programs, so it continues with the same file.
        """
        for worker, last in self._free.items():
            for job in self._waiting:
                if job.file == last.file:
                    return worker, job
        started = {job.file for job in self._jobs.values()}
        new = [job for job in self._waiting if job.file not in started]
        job = (new or self._waiting)[0]
        suitable = [w for w, last in self._free.items() if last.cores == job.cores]
        return (suitable[0] if suitable else None), job

    def _process_line(self, worker: Worker, job: Job, line: str) -> None:
        content = _parse(line)
        if isinstance(content, Record):
            self._progress.update(str(job.directory), content)
        elif content == ENDED:
            self._end(worker, job)
            self._free[worker] = job
        elif line.startswith(ERROR):
            self.errors[job.directory] = line.removeprefix(ERROR)
        elif job.directory in self.errors:
            self.errors[job.directory] += f"\n{line}"
        # JSON that is not a record is for scripts.
        elif not (self._interrupted or line.startswith("{")):
            print(f"{job.directory}: {line}", file=sys.stderr, flush=True)

    def _end(self, worker: Worker, job: Job) -> None:
        del self._jobs[worker]
        self._progress.finish(str(job.directory))


def _parse(line: str) -> Record | str | None:
    """Return a record, or `ENDED` at the end of a run; None for any other line."""
    try:
        content = json.loads(line)
        return ENDED if ENDED in content else Record.parse(line)
    except (ValueError, KeyError, TypeError):
        return None


def _death(exit_code: int | None, directory: Path) -> str:
    """Return the message of a run whose worker process ended before it."""
    cause = f"exit code {exit_code}"
    if exit_code is not None and exit_code < 0:
        cause = signal.Signals(-exit_code).name
    cure = (
        "If memory ran out, reduce --jobs; else resume"
        if cause == "SIGKILL"
        else "Resume"
    )
    return (
        f"Its worker process ended with {cause}. {cure} the run alone to see its "
        f"output: fedbilevel resume {quote(str(directory))}"
    )
