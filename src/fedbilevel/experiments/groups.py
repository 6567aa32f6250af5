"""Runs to be compared, in groups that differ by their seed alone."""

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
from fedbilevel.experiments.run_directory.layout import EXCHANGES
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
        failure: why the run failed; None if it did not.
        baseline: the same training with x fixed at its start, where it was made.

    Example:
        >>> SeedRun._fields[0]
        'directory'
    """

    directory: Path
    experiment: Experiment
    records: Sequence[Record]
    failure: Failure | None
    baseline: Record | None = None


class Group(NamedTuple):
    """Runs that differ by their seed alone.

    Attributes:
        label: the name of the group in tables and legends.
        runs: one a seed.

    Example:
        >>> Group("FedBiO", ()).failed
        ()
    """

    label: str
    runs: tuple[SeedRun, ...]

    @property
    def successful(self) -> tuple[SeedRun, ...]:
        """The runs that did not fail: means and deviations are over these."""
        return tuple(run for run in self.runs if run.failure is None)

    @property
    def failed(self) -> tuple[SeedRun, ...]:
        """The runs that failed."""
        return tuple(run for run in self.runs if run.failure is not None)


def read_seed_run(directory: Path) -> SeedRun:
    """Return the run in a directory, whether it failed or not.

    Raises:
        ValueError: if there is none, or it did not fail and was never measured.

    Example:
        >>> read_seed_run.__name__
        'read_seed_run'
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
    # It may have failed before it was measured for the first time.
    return SeedRun(
        directory,
        read_run_experiment(directory),
        list(read_records(directory)),
        failure,
    )


def grouped(runs: Sequence[SeedRun]) -> list[Group]:
    """Return runs in groups, in the order in which each group's first run comes.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = [Experiment(FedBiO(0.1), seed=seed) for seed in range(2)]
        >>> directories = [Path("runs/quick"), Path("runs/quick-seed-1")]
        >>> runs = [SeedRun(directories[n], asked[n], [], None) for n in range(2)]
        >>> [(group.label, len(group.runs)) for group in grouped(runs)]
        [('quick (FedBiO)', 2)]
    """
    groups: dict[str, tuple[SeedRun, ...]] = {}
    settings: dict[str, tuple[Experiment, bool]] = {}
    for run in runs:
        asked = replace(run.experiment, seed=0, tracking=Tracking())
        # A run across sites is another than its simulation.
        own = asked, (run.directory / EXCHANGES).exists()
        same = [label for label, other in settings.items() if other == own]
        label = same[0] if same else _label(run.directory.absolute().name, asked)
        if not same and label in settings:
            label = _label(str(run.directory), asked)
        settings.setdefault(label, own)
        groups[label] = (*groups.get(label, ()), run)
    return [Group(label, members) for label, members in groups.items()]


def _label(name: str, asked: Experiment) -> str:
    algorithm = asked.algorithm_name
    # Fonts, too, know no bytes that are no text.
    name = printable(name)
    return name if algorithm in name else f"{name} ({algorithm})"
