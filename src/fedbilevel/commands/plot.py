"""`fedbilevel plot RUN_DIRECTORY`: plot a run and write its HTML report."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from fedbilevel.atomic_write import atomic_write
from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.commands.formatting import JSON_HELP
from fedbilevel.experiments.baseline import read_baseline
from fedbilevel.experiments.build import build_task
from fedbilevel.experiments.run_directory.failures import divergence, read_failure
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.experiments.run_directory.runs import read_run
from fedbilevel.experiments.run_directory.solution import read_solution
from fedbilevel.picture import svg_of
from fedbilevel.pictures.history import history_picture
from fedbilevel.pictures.report import report
from fedbilevel.pictures.solution import solution_pictures
from fedbilevel.usage import with_plain_errors

REPORT = "report.html"


def main(arguments: Sequence[str]) -> int:
    """Plot a run and write its HTML report."""
    options = with_plain_errors(command_parser()).parse_args(arguments)
    directory = options.directory
    experiment, records = read_run(directory)
    failure = read_failure(directory)
    cause = failure or divergence(records)
    if cause is not None:
        print(f"The run in {directory} failed, {cause}", file=sys.stderr)
    baseline = read_baseline(directory)
    pictures = [history_picture(records, baseline)]
    # A run in progress has records, but no solution yet.
    if os.path.lexists(directory / SOLUTION):
        consent(experiment, directory, options.trust)
        task = build_task(experiment)
        solution = read_solution(directory, task)
        if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(solution.x)):
            pictures += solution_pictures(experiment, solution.x, task.x)
        else:
            print(
                f"x in {directory / SOLUTION} is not finite, so it is not plotted: the "
                "run diverged. Try a smaller learning_rate.",
                file=sys.stderr,
            )
    out = options.out or directory
    out.mkdir(parents=True, exist_ok=True)
    drawings = [(picture, svg_of(picture)) for picture in pictures]
    files = [out / f"{picture.name}.svg" for picture in pictures]
    for file, (_, svg) in zip(files, drawings, strict=True):
        # An existing file is replaced, not overwritten: it may be a link.
        atomic_write(file, svg)
    page = out / REPORT
    text = report(directory, experiment, records, drawings, failure, baseline)
    atomic_write(page, text)
    if options.json:
        print(json.dumps({"report": str(page), "pictures": list(map(str, files))}))
    else:
        print("\n".join(map(str, files)))
        print(f"Report: {page}")
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel plot",
        description="Plot the metrics and the solution of a run (.svg), and write "
        f"{REPORT}, an HTML report that needs no network.",
    )
    parser.add_argument(
        "directory", metavar="RUN_DIRECTORY", type=Path, help="run directory"
    )
    parser.add_argument(
        "--out",
        metavar="DIRECTORY",
        type=Path,
        help="directory of the pictures and the report (default: RUN_DIRECTORY)",
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser
