"""`fedbilevel plot DIRECTORY`: pictures of a run and of what it has learnt, as a page."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.experiments.baseline import read_baseline
from fedbilevel.experiments.build import build_task
from fedbilevel.experiments.run_directory.failures import divergence, read_failure
from fedbilevel.experiments.run_directory.layout import SOLUTION
from fedbilevel.experiments.run_directory.runs import read_run
from fedbilevel.experiments.run_directory.solution import read_solution
from fedbilevel.picture import svg_of
from fedbilevel.pictures.history import course
from fedbilevel.pictures.report import report
from fedbilevel.pictures.solution import learnt

REPORT = "report.html"


def main(arguments: Sequence[str]) -> int:
    """Draw a run.

    Example:
        >>> main.__name__
        'main'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel plot",
        description="Draw how a run went and what it has learnt: pictures (.svg), and "
        f"{REPORT}, one page that opens anywhere without a network.",
    )
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="of a run")
    parser.add_argument("--out", type=Path, help="where pictures go; into DIRECTORY")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    given = parser.parse_args(arguments)
    experiment, records = read_run(given.directory)
    failure = read_failure(given.directory)
    bad = failure or divergence(records)
    if bad is not None:
        print(f"the run in {given.directory} failed, {bad}", file=sys.stderr)
    baseline = read_baseline(given.directory)
    pictures = [course(records, baseline)]
    # While a run is still going there is nothing learnt yet, but much to see.
    if os.path.lexists(given.directory / SOLUTION):
        consent(experiment, given.directory, given.trust)
        task = build_task(experiment)
        found = read_solution(given.directory, task)
        if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.x)):
            pictures += learnt(experiment, found.x, task.x)
        else:
            print("x is not finite: the run has diverged", file=sys.stderr)
    out = given.out or given.directory
    out.mkdir(parents=True, exist_ok=True)
    drawn = [(picture, svg_of(picture)) for picture in pictures]
    files = [out / f"{picture.name}.svg" for picture in pictures]
    for file, (_, svg) in zip(files, drawn, strict=True):
        # In place of what is there, which may be a link.
        with atomic_replace(file) as unfinished:
            unfinished.write_text(svg, encoding="utf-8")
    page = out / REPORT
    text = report(given.directory, experiment, records, drawn, failure, baseline)
    with atomic_replace(page) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    if given.json:
        print(json.dumps({"report": str(page), "pictures": list(map(str, files))}))
    else:
        print("\n".join(map(str, files)))
        print(f"all of them on one page: {page}")
    return 0
