"""`fedbilevel compare RUN...`: several runs in a table and in curves."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedbilevel.commands.batch import processes_for, run_batch
from fedbilevel.commands.comparison import (
    DEVIATION,
    LEFT_OUT,
    as_json,
    table,
    warnings,
)
from fedbilevel.commands.missing_runs import jobs_of, missing_of
from fedbilevel.experiments.groups import Group, grouped, read_seed_run
from fedbilevel.nearest import nearest
from fedbilevel.pictures.curves import AXES, BAND, FAILED, Axis, curves
from fedbilevel.tracking.titles import title_of

INCOMPLETE = 1
"""The exit code of a comparison that lacks runs, because of errors."""


def main(arguments: Sequence[str]) -> int:
    """Compare runs; make those that are missing.

    Example:
        >>> main.__name__
        'main'
    """
    given = command_parser().parse_args(arguments)
    for option, number in (("--seeds", given.seeds), ("--jobs", given.jobs)):
        if number is not None and number < 1:
            raise ValueError(f"{option}: give at least 1, not {number}.")
    asked = [
        [subject] if subject.is_dir() else jobs_of(subject, given.seeds)
        for subject in given.runs
    ]
    jobs = [one for those in asked for one in those if not isinstance(one, Path)]
    missing = missing_of(jobs, given.force)
    code, errors = run_batch(
        missing, given.jobs or processes_for(missing), quiet=given.json
    )
    if code:
        return code
    for folder, reason in errors.items():
        print(f"{folder} could not be run: {reason}", file=sys.stderr)
    folders = [
        one if isinstance(one, Path) else one.folder for those in asked for one in those
    ]
    # A directory that is named twice is one run.
    different = {folder.resolve(): folder for folder in folders}.values()
    runs = [read_seed_run(folder) for folder in different if folder not in errors]
    if not runs:
        raise ValueError("there is nothing to compare: no run could be made.")
    groups = grouped(runs)
    for warning in warnings(groups):
        print(warning, file=sys.stderr)
    figures = _figures(groups, given.figure)
    axes = given.against or AXES
    curves(groups, figures, axes).savefig(given.out)
    if given.json:
        print(as_json(groups))
    else:
        print(table(groups))
        print(f"curves of the {' and the '.join(map(title_of, figures))}: {given.out}")
    return INCOMPLETE if errors else 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel compare'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel compare",
        description="Compare runs by their directories, or experiments by their files: "
        "those that were not run yet are run first. Runs that differ in their seed "
        "alone become one row and one line with a band.",
        epilog=f"In the table, {DEVIATION} {LEFT_OUT} In the figure, {BAND} {FAILED} "
        "A run that diverged is a failed seed: it is a result, so the exit code is 0, "
        "and it is not run again without --force.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", type=Path, help="a directory or a file"
    )
    parser.add_argument(
        "--figure",
        action="append",
        metavar="METRIC",
        help="a metric to draw, once for each row of panels: loss, training_loss, a "
        "metric's name, or, where stationarity was measured, hypergradient or "
        "lower_error; by default the first that all runs have",
    )
    parser.add_argument(
        "--against",
        action="append",
        type=_axis,
        metavar="COST",
        help="a horizontal axis, once for each column of panels: "
        f"{', '.join(axis.value for axis in Axis)}; by default "
        f"{', '.join(axis.value for axis in AXES)}",
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs of each experiment file; 1"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        help="processes that carry out missing runs side by side, each with the memory "
        "of a run; by default one a core, at most one a gigabyte of memory. With 1 "
        "they run one after another in this process",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="run again what failed, and replace runs whose file was edited since",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("comparison.svg"),
        help="the picture, of any format that matplotlib knows; comparison.svg",
    )
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser


def _axis(name: str) -> Axis:
    known = {axis.value: axis for axis in Axis}
    if name not in known:
        raise argparse.ArgumentTypeError(
            f"{name!r} is not known; {nearest(name, known)}"
        )
    return known[name]


def _figures(groups: Sequence[Group], asked: Sequence[str] | None) -> list[str]:
    """Return the metrics to draw: those asked for, or the first that all runs have."""
    named = [
        (group.label, list(run.records[-1].figures))
        for group in groups
        for run in group.runs
        if run.records
    ]
    for label, known in named:
        for figure in asked or ():
            if figure not in known:
                raise ValueError(
                    f"{label} has no figure {figure!r}; it has {', '.join(known)}."
                )
    if asked:
        return list(dict.fromkeys(asked))
    if not named:
        return ["loss"]  # nothing was measured: every run failed in its first round
    common = [one for one in named[0][1] if all(one in known for _, known in named)]
    if not common:
        raise ValueError("these runs have no figure in common; name two that have.")
    return common[:1]
