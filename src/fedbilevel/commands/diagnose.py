"""`fedbilevel diagnose RUN`: measure how heterogeneous the devices are."""

import argparse
import json
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedbilevel.commands.consent import add_trust, read_with_consent
from fedbilevel.commands.diagnosis_progress import diagnosis_progress
from fedbilevel.commands.formatting import JSON_HELP
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.run_directory.solution import Solution, read_solution
from fedbilevel.metrics.diagnosis import Diagnosis, diagnose
from fedbilevel.metrics.obstacles import ObstacleCause
from fedbilevel.metrics.survey import Survey
from fedbilevel.usage import with_plain_errors


def main(arguments: Sequence[str]) -> int:
    """Measure how far the mean of local hypergradients is from the global one."""
    options = with_plain_errors(command_parser()).parse_args(arguments)
    survey = Survey(batch_size=options.batch_size, products=options.products)
    path = options.run
    is_run = path.is_dir()
    experiment = read_with_consent(path, options.trust)
    if experiment.transforms.is_private:
        print(
            "A diagnosis reads the devices' examples without noise, and the ε of "
            f"{path} does not cover it. Do not publish its numbers.",
            file=sys.stderr,
        )
    task = build_task(experiment)
    point = read_solution(path, task) if is_run else Solution(task.x, task.y)
    with diagnosis_progress(quiet=options.json) as report:
        result = diagnose(
            task.problem,
            task.devices,
            *point,
            survey=survey,
            tolerance=options.tolerance,
            weights=weights_of(experiment, task.devices),
            report=report,
        )
    position = "the end of the run" if is_run else "the start"
    if options.json:
        print(json.dumps({"at": position, **_as_json(result)}))
        return 0
    print(f"At {position}, with y = y*(x): {result}")
    obstacle = result.obstacle
    if obstacle is not None and obstacle.cause is ObstacleCause.NOT_CONVERGED:
        print(f"On the command line: --products {obstacle.needed}.")
    return 0


def _as_json(result: Diagnosis) -> dict[str, Any]:
    # JSON has no infinity and no NaN.
    numbers = {
        name: value if isfinite(value := getattr(result, name)) else None
        for name in (
            "distance",
            "low",
            "high",
            "tolerance",
            "residual",
            "local_residual",
        )
    }
    obstacle = result.obstacle
    return {
        "verdict": result.verdict.name,
        **numbers,
        "cause": None if obstacle is None else obstacle.cause.name,
        "reason": None if obstacle is None else str(obstacle),
        "products_needed": None if obstacle is None else obstacle.needed,
        "curvature": None if obstacle is None else obstacle.curvature,
        "exchanges": result.costs.exchanges,
    }


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel diagnose",
        description="Measure how far the mean of the devices' local hypergradients, "
        "which LocalBSGM, LocalBSGVRM and LFedNest use, is from the global "
        "hypergradient: at the start of an experiment file, or at the end of a run "
        "directory. Every device uses all of its examples.",
    )
    parser.add_argument(
        "run", metavar="RUN", type=Path, help="run directory or experiment file"
    )
    parser.add_argument(
        "--tolerance",
        metavar="FLOAT",
        type=float,
        default=0.1,
        help="largest relative distance of homogeneous devices (default: %(default)s)",
    )
    parser.add_argument(
        "--products",
        metavar="INT",
        type=int,
        default=Survey.products,
        help="maximum number of Hessian products of one solve (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        metavar="INT",
        type=int,
        default=Survey.batch_size,
        help="examples that a device evaluates at once; affects only memory and time "
        "(default: %(default)s)",
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser
