"""A run that a comparison has to start or resume."""

import sys
from pathlib import Path
from typing import NamedTuple

from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.runs import discard, finished
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
