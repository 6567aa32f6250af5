"""The runs that experiment files ask for: those there are, and those to be made."""

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
    r"""Return the runs that a file asks for, one a seed, whether they are made or not.

    Raises:
        ValueError: if the directory of one belongs to another file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "a.toml"
        >>> _ = file.write_text('[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1')
        >>> [job.directory.name for job in jobs_of(file, seeds=2)]
        ['a', 'a-seed-1']
    """
    asked = read_experiment(file)
    jobs = []
    for seed in range(asked.seed, asked.seed + seeds):
        suffix = f"-seed-{seed}" if seed != asked.seed else ""
        experiment, directory = resolve_run_directory(
            replace(asked, seed=seed), file, suffix
        )
        owner = directory.parent.parent / f"{directory.name}.toml"
        named_after = directory.parent.name == "runs" and owner.is_file()
        if named_after and not owner.samefile(file):
            raise ValueError(
                f"{directory} is the run directory of {owner}, so {file} with seed {seed} "
                "cannot use it; rename one of the files, or give one another `directory`."
            )
        jobs.append(Job(file, experiment, directory, replaces=False))
    return jobs


def missing_of(jobs: Sequence[Job], force: bool) -> list[Job]:
    """Return the runs that are to be made or resumed.

    Args:
        jobs: all runs that were asked for.
        force: whether runs that failed, and runs whose file was edited since, are made
            again.

    Raises:
        ValueError: if a run has other settings than its file, without `force`; or
            if two files ask for different runs in one directory.

    Example:
        >>> missing_of([], force=False)
        []
    """
    by_directory: dict[Path, Job] = {}
    missing, edited = [], dict[str, list[Path]]()
    for job in jobs:
        place = job.directory.absolute()
        if place in by_directory:
            _refuse_different(by_directory[place], job)
            continue
        by_directory[place] = job
        changes = _changes(job)
        failed = read_failure(job.directory) is not None
        if force and (changes or failed):
            missing.append(job._replace(replaces=True))
        elif changes:
            words = f"differs from {job.file} (run → file): {changes}"
            edited.setdefault(words, []).append(job.directory)
        elif not job.has_result:
            missing.append(job)
    if edited:
        raise ValueError(
            "\n".join(
                f"the run in {', '.join(map(str, directories))} {words}"
                for words, directories in edited.items()
            )
            + "\nAdd --force to replace these runs, or compare their directories as "
            "they are."
        )
    return missing


def _changes(job: Job) -> str:
    """Return how the file was edited since its run was made; nothing if it was not."""
    if not (job.directory / EXPERIMENT).is_file():
        return ""
    changes = format_differences(
        differences(read_run_experiment(job.directory), job.experiment)
    )
    if not changes and problem_edited(job.experiment, job.directory):
        return "the file of its problem was edited"
    return changes


def _refuse_different(first: Job, second: Job) -> None:
    different = differences(first.experiment, second.experiment)
    if different:
        raise ValueError(
            f"{first.file} and {second.file} ask for different runs in {first.directory}: "
            f"{format_differences(different)}; give one of them another `directory`."
        )
