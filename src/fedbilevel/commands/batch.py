"""Batches of runs: in sequence in this process, or in parallel in workers."""

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from fedbilevel.commands.batch_progress import batch_progress
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.jobs import Job
from fedbilevel.commands.run_monitor import follow
from fedbilevel.commands.worker_pool import WorkerPool
from fedbilevel.experiments.schema import Sharded
from fedbilevel.memory import memory_limit


class Ending(NamedTuple):
    """The end of a batch.

    Attributes:
        code: exit code of the signal that stopped the batch; 0 without a signal.
        errors: error message of each run without a result, by run directory.
    """

    code: int
    errors: dict[Path, str]


def processes_for(jobs: Sequence[Job]) -> int:
    """Return the default number of processes: one per core, at most one per job.

    A run of the engine `Sharded` uses several cores itself. Each process needs memory:
    at most one process per gigabyte of the machine or container is started.

    Example:
        >>> processes_for([])
        1
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    needs = (
        job.cores or (cores if isinstance(job.experiment.engine, Sharded) else 1)
        for job in jobs
    )
    # A run of FedBiO on digits used at most 0.55 GB.
    memory = memory_limit() // 10**9
    return max(1, min(len(jobs), memory, cores // max(needs, default=1)))


def run_batch(jobs: Sequence[Job], processes: int, quiet: bool) -> Ending:
    """Run jobs; an error in one job does not end the others.

    The first Ctrl-C stops every job after its current round, with a checkpoint.

    Args:
        jobs: runs to start or resume.
        processes: number of parallel processes; with 1 all jobs run in this process,
            unless they need different numbers of cores.
        quiet: whether to show no progress.

    Example:
        >>> run_batch([], 2, quiet=True)
        Ending(code=0, errors={})
    """
    if processes == 1 and len({job.cores for job in jobs}) < 2:
        code, errors = _run_sequentially(jobs, quiet)
    else:
        code, errors = _run_in_parallel(jobs, processes, quiet)
    missing = [job.directory for job in jobs if not job.has_result]
    if code and missing:
        print(
            f"Stopped with {len(jobs) - len(missing)} of {len(jobs)} runs finished. "
            "The same command resumes the others.",
            file=sys.stderr,
        )
        return Ending(code, {})
    return Ending(
        0, {path: errors.get(path) or _without_message(path) for path in missing}
    )


def _without_message(directory: Path) -> str:
    return (
        f"{directory} has neither a result nor an error message. Resume the run alone "
        f"to see its output: fedbilevel resume {quote(str(directory))}"
    )


def _run_sequentially(jobs: Sequence[Job], quiet: bool) -> Ending:
    errors: dict[Path, str] = {}
    for job in jobs:
        try:
            job.begin()
            end = follow(job.experiment, job.directory, resume=True, quiet=quiet)
        except Exception as error:
            if os.environ.get("FEDBILEVEL_DEBUG") and not job.has_result:
                raise
            errors[job.directory] = str(error) or type(error).__name__
            continue
        if end.code:
            return Ending(end.code, errors)
    return Ending(0, errors)


def _run_in_parallel(jobs: Sequence[Job], processes: int, quiet: bool) -> Ending:
    with (
        interruption() as interrupted,
        batch_progress(len(jobs), quiet) as (progress, show),
        closing(WorkerPool(jobs, processes, progress)) as pool,
    ):
        pool.start_jobs()
        while pool.busy:
            pool.read_line()
            show(False)
            if interrupted():
                pool.interrupt()
            pool.start_jobs()
    return Ending(interrupted(), pool.errors)
