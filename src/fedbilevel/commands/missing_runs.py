"""The runs that experiment files specify, and the missing ones among them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedbilevel.commands.job import Job
from fedbilevel.experiments.differences import differences, format_differences
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.run_directory.runs import (
    problem_edited,
    read_run_experiment,
    resolve_run_directory,
)


def jobs_of(file: Path, seeds: int) -> list[Job]:
    r"""Return the runs that a file specifies, one per seed, finished or not.

    Raises:
        ValueError: if a run directory belongs to another file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "a.toml"
        >>> _ = file.write_text('[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1')
        >>> [job.directory.name for job in jobs_of(file, seeds=2)]
        ['a', 'a-seed-1']
    """
    original = read_experiment(file)
    jobs = []
    for seed in range(original.seed, original.seed + seeds):
        suffix = f"-seed-{seed}" if seed != original.seed else ""
        experiment, directory = resolve_run_directory(
            replace(original, seed=seed), file, suffix
        )
        owner = directory.parent.parent / f"{directory.name}.toml"
        has_owner = directory.parent.name == "runs" and owner.is_file()
        if has_owner and not owner.samefile(file):
            raise ValueError(
                f"{directory} is the run directory of {owner}, so {file} with seed "
                f"{seed} cannot use it. Rename one of the files, or set another "
                "`directory` in one of them."
            )
        jobs.append(Job(file, experiment, directory, replaces=False))
    return jobs


def missing_of(jobs: Sequence[Job], force: bool) -> list[Job]:
    """Return the jobs that have to be started or resumed.

    Args:
        jobs: all specified runs.
        force: whether to repeat failed runs, and runs whose file was edited since.

    Raises:
        ValueError: if a run has other settings than its file, without `force`; or if
            two files specify different runs in one directory.

    Example:
        >>> missing_of([], force=False)
        []
    """
    by_directory: dict[Path, Job] = {}
    missing, edited = [], dict[str, list[Path]]()
    for job in jobs:
        path = job.directory.absolute()
        if path in by_directory:
            _refuse_different(by_directory[path], job)
            continue
        by_directory[path] = job
        changes = _changes(job)
        failed = read_failure(job.directory) is not None
        if force and (changes or failed):
            missing.append(job._replace(replaces=True))
        elif changes:
            difference = f"differs from {job.file} (run → file): {changes}"
            edited.setdefault(difference, []).append(job.directory)
        elif not job.has_result:
            missing.append(job)
    if edited:
        raise ValueError(
            "\n".join(
                f"The run in {', '.join(map(str, directories))} {difference}"
                for difference, directories in edited.items()
            )
            + "\nAdd --force to replace these runs, or give their directories instead "
            "of the file to compare them unchanged."
        )
    return missing


def _changes(job: Job) -> str:
    """Return the edits of the file since its run began; empty without edits."""
    if not (job.directory / EXPERIMENT).is_file():
        return ""
    changes = format_differences(
        differences(read_run_experiment(job.directory), job.experiment)
    )
    if not changes and problem_edited(job.experiment, job.directory):
        return "the problem file was edited"
    return changes


def _refuse_different(first: Job, second: Job) -> None:
    different = differences(first.experiment, second.experiment)
    if different:
        raise ValueError(
            f"{first.file} and {second.file} specify different runs in "
            f"{first.directory}: {format_differences(different)}. Set another "
            "`directory` in one of them."
        )
