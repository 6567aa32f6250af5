"""Groups of runs for a comparison; the runs of a group differ only by their seed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedbilevel.experiments.baseline import read_baseline
from fedbilevel.experiments.run_directory.failures import (
    Failure,
    divergence,
    read_failure,
)
from fedbilevel.experiments.run_directory.layout import BEST, EXCHANGES
from fedbilevel.experiments.run_directory.runs import read_run, read_run_experiment
from fedbilevel.experiments.schema import Experiment, Tracking
from fedbilevel.terminal import printable
from fedbilevel.tracking.records import Record, read_records


class SeedRun(NamedTuple):
    """A run of a comparison.

    Attributes:
        directory: the run directory.
        experiment: the settings of the run, its seed among them.
        records: the measurements, oldest first; a failed run may have none.
        failure: the failure of the run; None if it did not fail.
        baseline: the same training with x fixed at its start; None without one.
    """

    directory: Path
    experiment: Experiment
    records: Sequence[Record]
    failure: Failure | None
    baseline: Record | None = None


class Group(NamedTuple):
    """Runs that differ only by their seed.

    Attributes:
        label: the name of the group in tables and legends.
        runs: the runs, one for each seed.

    Example:
        >>> Group("FedBiO", ()).failed
        ()
    """

    label: str
    runs: tuple[SeedRun, ...]

    @property
    def successful(self) -> tuple[SeedRun, ...]:
        """The runs that did not fail; means and deviations are over these."""
        return tuple(run for run in self.runs if run.failure is None)

    @property
    def failed(self) -> tuple[SeedRun, ...]:
        """The runs that failed."""
        return tuple(run for run in self.runs if run.failure is not None)


def read_seed_run(directory: Path) -> SeedRun:
    """Return the run in a directory, whether it failed or not.

    Raises:
        ValueError: if the directory has no run, or a run without measurements that
            did not fail.
    """
    failure = read_failure(directory)
    if failure is None:
        experiment, records = read_run(directory)
        return SeedRun(
            directory,
            experiment,
            records,
            divergence(records),
            read_baseline(directory),
        )
    # It may have failed before its first measurement.
    return SeedRun(
        directory,
        read_run_experiment(directory),
        list(read_records(directory)),
        failure,
    )


def grouped(runs: Sequence[SeedRun]) -> list[Group]:
    """Return runs in groups, in the order of the first run of each group.

    Example:
        >>> from fedbilevel import FedBiO
        >>> seeds = [Experiment(FedBiO(0.1), seed=seed) for seed in range(2)]
        >>> directories = [Path("runs/quick"), Path("runs/quick-seed-1")]
        >>> runs = [SeedRun(directories[n], seeds[n], [], None) for n in range(2)]
        >>> [(group.label, len(group.runs)) for group in grouped(runs)]
        [('quick (FedBiO)', 2)]
    """
    groups: dict[str, tuple[SeedRun, ...]] = {}
    settings: dict[str, tuple[Experiment, bool]] = {}
    for run in runs:
        experiment = replace(run.experiment, seed=0, tracking=Tracking())
        # A run across sites is not in the group of its simulation.
        setting = experiment, (run.directory / EXCHANGES).exists()
        same = [label for label, other in settings.items() if other == setting]
        label = same[0] if same else _label(_name(run.directory), experiment)
        if not same and label in settings:
            label = _label(str(run.directory), experiment)
        settings.setdefault(label, setting)
        groups[label] = (*groups.get(label, ()), run)
    return [Group(label, members) for label, members in groups.items()]


def _name(directory: Path) -> str:
    """Return the name of a run directory; with its parent if `tune` has named it."""
    path = directory.absolute()
    is_tuned = path.name == Path(BEST).stem
    return f"{path.parent.name}/{path.name}" if is_tuned else path.name


def _label(name: str, experiment: Experiment) -> str:
    algorithm = experiment.algorithm_name
    # Bytes of a file name that are not text have no glyph in the fonts of pictures.
    name = printable(name)
    return name if algorithm in name else f"{name} ({algorithm})"
