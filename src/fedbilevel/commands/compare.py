"""`fedbilevel compare RUN...`: compare runs in a table and in curves."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbilevel.commands.batch import processes_for, run_batch
from fedbilevel.commands.comparison import (
    DEVIATION,
    EXCLUDED,
    as_json,
    table,
    warnings,
)
from fedbilevel.commands.formatting import JSON_HELP
from fedbilevel.commands.jobs import Job, jobs_of, missing_of
from fedbilevel.experiments.groups import Group, grouped, read_seed_run
from fedbilevel.metrics.losses import LOSS
from fedbilevel.metrics.registry import title_of
from fedbilevel.nearest import nearest
from fedbilevel.pictures.curves import AXES, BAND, FAILED, Axis, curves
from fedbilevel.usage import with_plain_errors

INCOMPLETE = 1
"""Exit code of a comparison without the runs that raised errors."""


def main(arguments: Sequence[str]) -> int:
    """Compare runs; first run those that are missing."""
    options = with_plain_errors(command_parser()).parse_args(arguments)
    for option, number in (("--seeds", options.seeds), ("--jobs", options.jobs)):
        if number is not None and number < 1:
            raise ValueError(f"{option} is {number}. Give at least 1.")
    runs_or_jobs: list[Path | Job] = []
    for path in options.runs:
        if not path.exists():
            raise ValueError(
                f"{path} does not exist; give a run directory or an experiment file."
            )
        runs_or_jobs += [path] if path.is_dir() else jobs_of(path, options.seeds)
    jobs = [job for job in runs_or_jobs if not isinstance(job, Path)]
    missing = missing_of(jobs, options.force)
    code, errors = run_batch(
        missing, options.jobs or processes_for(missing), quiet=options.json
    )
    if code:
        return code
    for directory, reason in errors.items():
        print(f"The run in {directory} failed: {reason}", file=sys.stderr)
    directories = [
        item if isinstance(item, Path) else item.directory for item in runs_or_jobs
    ]
    # The same directory may be given twice.
    unique = {directory.resolve(): directory for directory in directories}.values()
    runs = [read_seed_run(directory) for directory in unique if directory not in errors]
    if not runs:
        raise ValueError(
            "All runs failed, so there is nothing to compare. Correct the errors above."
        )
    groups = grouped(runs)
    for warning in warnings(groups):
        print(warning, file=sys.stderr)
    metrics = _metrics(groups, options.metric)
    axes = options.against or AXES
    curves(groups, metrics, axes).savefig(options.out)
    if options.json:
        print(as_json(groups))
    else:
        print(table(groups))
        print(f"Curves ({', '.join(map(title_of, metrics))}): {options.out}")
    return INCOMPLETE if errors else 0


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel compare",
        description="Compare runs in a table and in curves. Give run directories, or "
        "experiment files, whose missing runs are run first. Runs that differ only in "
        "their seed share one row and one line with a band.",
        epilog=f"Table: {DEVIATION} {EXCLUDED} Curves: {BAND} {FAILED} "
        "A diverged run is a failed seed: this is a result, so the exit code is 0, and "
        "the run is repeated only with --force.",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        type=Path,
        help="run directory or experiment file",
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="METRIC",
        help="metric of a row of panels; repeat for more rows: loss, training_loss, a "
        "metric of the problem, or one that evaluation.metrics of the runs names "
        "(default: the first common metric)",
    )
    parser.add_argument(
        "--against",
        action="append",
        type=_axis,
        metavar="COST",
        help="horizontal axis of a column of panels; repeat for more columns: "
        f"{', '.join(axis.value for axis in Axis)} (default: "
        f"{', '.join(axis.value for axis in AXES)})",
    )
    parser.add_argument(
        "--seeds",
        metavar="INT",
        type=int,
        default=1,
        help="number of seeds of each experiment file (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        metavar="INT",
        type=int,
        help="number of parallel processes for missing runs; 1 runs them in sequence "
        "in this process (default: one per core, at most one per gigabyte of memory)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="repeat failed runs, and replace runs whose file was edited since",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("comparison.svg"),
        help="file of the curves, in any format of matplotlib (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _axis(name: str) -> Axis:
    known = {axis.value: axis for axis in Axis}
    if name not in known:
        raise argparse.ArgumentTypeError(
            f"{name!r} is not a cost; {nearest(name, known)}"
        )
    return known[name]


def _metrics(groups: Sequence[Group], requested: Sequence[str] | None) -> list[str]:
    """Return the metrics to draw: the requested ones, or the first common one."""
    metrics_of_runs = [
        (group.label, list(run.records[-1].metrics))
        for group in groups
        for run in group.runs
        if run.records
    ]
    for label, known in metrics_of_runs:
        for metric in requested or ():
            if metric not in known:
                raise ValueError(
                    f"--metric {metric!r} was not measured in {label}. Choose one of "
                    f"{', '.join(known)}."
                )
    if requested:
        return list(dict.fromkeys(requested))
    if not metrics_of_runs:
        return [LOSS.name]  # every run failed in its first round
    common = [
        metric
        for metric in metrics_of_runs[0][1]
        if all(metric in known for _, known in metrics_of_runs)
    ]
    if not common:
        runs = "; ".join(f"{run}: {', '.join(known)}" for run, known in metrics_of_runs)
        raise ValueError(
            f"The runs have no common metric ({runs}). Compare runs that share one."
        )
    return common[:1]
