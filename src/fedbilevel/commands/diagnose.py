"""`fedbilevel diagnose RUN`: is the federation homogeneous enough?"""

import argparse
import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.commands.diagnosis_progress import diagnosis_progress
from fedbilevel.experiments.build import task_of, weights_of
from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run_directory.runs import asked_of
from fedbilevel.experiments.run_directory.solution import Learnt, read_learnt
from fedbilevel.metrics.diagnosis import Diagnosis, diagnose
from fedbilevel.metrics.obstacles import Cause
from fedbilevel.metrics.survey import Survey


def main(arguments: Sequence[str]) -> int:
    """Ask the devices of an experiment how much their own hypergradients differ.

    Example:
        >>> main.__name__
        'main'
    """
    given = command_parser().parse_args(arguments)
    survey = Survey(batch_size=given.batch_size, products=given.products)
    finished = given.run.is_dir()
    experiment = asked_of(given.run) if finished else read_experiment(given.run)
    if finished:
        consent(experiment, given.run, given.trust)
    else:
        remember_problem(experiment)
    task = task_of(experiment)
    point = read_learnt(given.run, task) if finished else Learnt(task.x, task.y)
    with diagnosis_progress(quiet=given.json) as report:
        found = diagnose(
            task.problem,
            task.devices,
            *point,
            survey=survey,
            tolerance=given.tolerance,
            weights=weights_of(experiment, task.devices),
            report=report,
        )
    where = "the end of the run" if finished else "the start"
    if given.json:
        print(json.dumps({"at": where, **_as_json(found)}))
        return 0
    print(f"At {where}, with y = y*(x): {found}")
    if found.obstacle is not None and found.obstacle.cause is Cause.NOT_CONVERGED:
        print(f"Here that is --products {found.obstacle.needed}.")
    return 0


def _as_json(found: Diagnosis) -> dict[str, Any]:
    # JSON has no number for what is not finite.
    numbers = {
        name: value if isfinite(value := getattr(found, name)) else None
        for name in (
            "distance",
            "low",
            "high",
            "tolerance",
            "residual",
            "own_residual",
        )
    }
    obstacle = found.obstacle
    return {
        "verdict": found.verdict.name,
        **numbers,
        "cause": None if obstacle is None else obstacle.cause.name,
        "reason": None if obstacle is None else str(obstacle),
        "products_needed": None if obstacle is None else obstacle.needed,
        "curvature": None if obstacle is None else obstacle.curvature,
        "exchanges": found.costs.exchanges,
    }


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel diagnose'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel diagnose",
        description="LocalBSGM, LocalBSGVRM and LFedNest follow the mean of the "
        "devices' own hypergradients. Measure how far that is from the global one, at "
        "the start of an experiment (by its file) or at the end of a run (by its "
        "folder). Every device uses all of its examples.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a file or a folder")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.1,
        help="the relative distance that counts as small; 0.1",
    )
    parser.add_argument(
        "--products",
        type=int,
        default=Survey.products,
        help=f"the most Hessian products of one solve; {Survey.products}",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=Survey.batch_size,
        help="examples that a device evaluates at once, for memory alone; "
        f"{Survey.batch_size}",
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser
