"""`fedbilevel plot FOLDER`: pictures of a run and of what it has learnt, as a page."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from fedbilevel.atomic_write import replacing
from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.experiments.baseline import read_baseline
from fedbilevel.experiments.build import task_of
from fedbilevel.experiments.run_directory.failures import divergence, read_failure
from fedbilevel.experiments.run_directory.layout import LEARNT
from fedbilevel.experiments.run_directory.runs import read_run
from fedbilevel.experiments.run_directory.solution import read_learnt
from fedbilevel.picture import svg_of
from fedbilevel.pictures.course import course
from fedbilevel.pictures.learnt import learnt
from fedbilevel.pictures.report import report

REPORT = "report.html"


def main(arguments: Sequence[str]) -> int:
    """Draw a run.

    Example:
        >>> main.__name__
        'main'
    """
    given = command_parser().parse_args(arguments)
    experiment, records = read_run(given.folder)
    failure = read_failure(given.folder)
    bad = failure or divergence(records)
    if bad is not None:
        print(f"the run in {given.folder} failed, {bad}", file=sys.stderr)
    baseline = read_baseline(given.folder)
    pictures = [course(records, baseline)]
    # While a run is still going there is nothing learnt yet, but much to see.
    if os.path.lexists(given.folder / LEARNT):
        consent(experiment, given.folder, given.trust)
        task = task_of(experiment)
        found = read_learnt(given.folder, task)
        if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.x)):
            pictures += learnt(experiment, found.x, task.x)
        else:
            print("x is not finite: the run has diverged", file=sys.stderr)
    out = given.out or given.folder
    out.mkdir(parents=True, exist_ok=True)
    drawn = [(picture, svg_of(picture)) for picture in pictures]
    files = [out / f"{picture.name}.svg" for picture in pictures]
    for file, (_, svg) in zip(files, drawn, strict=True):
        # In place of what is there, which may be a link.
        with replacing(file) as unfinished:
            unfinished.write_text(svg, encoding="utf-8")
    page = out / REPORT
    text = report(given.folder, experiment, records, drawn, failure, baseline)
    with replacing(page) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    if given.json:
        print(json.dumps({"report": str(page), "pictures": list(map(str, files))}))
    else:
        print("\n".join(map(str, files)))
        print(f"all of them on one page: {page}")
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel plot'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel plot",
        description="Draw how a run went and what it has learnt: pictures (.svg), and "
        f"{REPORT}, one page that opens anywhere without a network.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of a run")
    parser.add_argument("--out", type=Path, help="where pictures go; into FOLDER")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser
