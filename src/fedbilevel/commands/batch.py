"""Several runs: one after another in this process, or side by side in workers."""

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from fedbilevel.commands.batch_progress import batch_progress
from fedbilevel.commands.interruption import interruption
from fedbilevel.commands.job import Job
from fedbilevel.commands.run_monitor import follow
from fedbilevel.commands.worker_pool import WorkerPool
from fedbilevel.experiments.schema import Sharded
from fedbilevel.memory import memory_limit

UNKNOWN = "it ended without a message"


class Ending(NamedTuple):
    """The end of a batch.

    Attributes:
        code: the exit code of a signal that stopped it; 0 without one.
        errors: by run directory, why a run has no result.

    Example:
        >>> Ending(0, {}).code
        0
    """

    code: int
    errors: dict[Path, str]


def processes_for(jobs: Sequence[Job]) -> int:
    """Return how many processes jobs get by default: one a core, at most one a job.

    A run of the engine `Sharded` uses several cores itself. Each process needs memory:
    there are at most as many as the machine or container has gigabytes.

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
    # A run of FedBiO on digits took 0.55 GB at most.
    memory = memory_limit() // 10**9
    return max(1, min(len(jobs), memory, cores // max(needs, default=1)))


def run_batch(jobs: Sequence[Job], processes: int, quiet: bool) -> Ending:
    """Carry out runs; an error in one does not end the others.

    The first Ctrl-C ends all of them after their round in progress, with a checkpoint.

    Args:
        jobs: the runs.
        processes: how many run side by side; 1 runs all in this process, unless they
            need different numbers of cores.
        quiet: whether to show no progress.

    Example:
        >>> run_batch([], 2, quiet=True)
        Ending(code=0, errors={})
    """
    if processes == 1 and len({job.cores for job in jobs}) < 2:
        code, errors = _one_after_another(jobs, quiet)
    else:
        code, errors = _side_by_side(jobs, processes, quiet)
    missing = [job.directory for job in jobs if not job.has_result]
    if code and missing:
        print(
            f"stopped; {len(jobs) - len(missing)} of {len(jobs)} runs are done, the "
            "same command resumes the others",
            file=sys.stderr,
        )
        return Ending(code, {})
    return Ending(
        0, {directory: errors.get(directory, UNKNOWN) for directory in missing}
    )


def _one_after_another(jobs: Sequence[Job], quiet: bool) -> Ending:
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


def _side_by_side(jobs: Sequence[Job], processes: int, quiet: bool) -> Ending:
    with (
        interruption() as interrupted,
        batch_progress(len(jobs), quiet) as progress,
        closing(WorkerPool(jobs, processes, progress)) as crew,
    ):
        crew.fill()
        while crew.busy:
            crew.hear()
            progress.show()
            if interrupted():
                crew.interrupt()
            crew.fill()
    return Ending(interrupted(), crew.errors)
