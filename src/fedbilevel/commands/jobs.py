"""The runs that a comparison starts or resumes: jobs, and the missing ones."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.differences import differences, format_differences
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.run_directory.runs import (
    discard,
    finished,
    problem_edited,
    read_run_experiment,
    resolve_run_directory,
)
from fedbilevel.experiments.schema import Experiment, Sharded


class Job(NamedTuple):
    """A run to start or resume.

    Attributes:
        file: experiment file.
        experiment: settings of the file, with the seed of this run.
        directory: run directory.
        replaces: whether to delete the run in that directory first.

    Example:
        >>> from fedbilevel import FedBiO
        >>> job = Job(Path("a.toml"), Experiment(FedBiO(0.1)), Path("runs/a"), False)
        >>> job.has_result
        False
    """

    file: Path
    experiment: Experiment
    directory: Path
    replaces: bool

    @property
    def cores(self) -> int | None:
        """Number of cores for JAX, which a process can set only once."""
        engine = self.experiment.engine
        return engine.cores if isinstance(engine, Sharded) else None

    @property
    def has_result(self) -> bool:
        """True if the run is finished or failed."""
        failure = read_failure(self.directory)
        return failure is not None or finished(self.experiment, self.directory)

    def begin(self) -> None:
        """Announce the run, and delete the one that it replaces."""
        remember_problem(self.experiment)
        print(f"Running {self.file} with seed {self.experiment.seed}", file=sys.stderr)
        if self.replaces:
            discard(self.directory)
            print(f"Replacing the run in {self.directory}", file=sys.stderr)


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
