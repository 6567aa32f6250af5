"""`fedbilevel diagnose RUN`: is the federation homogeneous enough?"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fedbilevel.algorithms.survey import Survey
from fedbilevel.algorithms.warm_start import WarmStart
from fedbilevel.experiments.building import task_of, weights_of
from fedbilevel.experiments.learnt import Learnt, read_learnt
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.experiments.runs import asked_of
from fedbilevel.mathematics.hypergradients import NeumannSeries
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.metrics.diagnosis import Verdict, diagnose


def main(arguments: Sequence[str]) -> int:
    """Ask the devices of an experiment how much their own hypergradients differ.

    Example:
        >>> main.__name__
        'main'
    """
    given = _parser().parse_args(arguments)
    finished = given.run.is_dir()
    experiment = asked_of(given.run) if finished else read_experiment(given.run)
    task = task_of(experiment)
    point = read_learnt(given.run, task) if finished else Learnt(task.x, task.y)
    weights = weights_of(experiment, task.devices)
    curvature = largest_curvature(task.problem, task.devices, *point, weights=weights)
    rate = given.margin / curvature
    survey = Survey(
        NeumannSeries(given.terms, rate),
        batch_size=given.batch_size,
        warm_start=WarmStart(rate, exchanges=50, batch_size=given.batch_size),
    )
    try:
        found = diagnose(
            task.problem,
            survey,
            task.devices,
            *point,
            rounds=given.estimates,
            weights=weights,
        )
    except ArithmeticError as error:
        raise ArithmeticError(
            f"{error} Here --margin sets the rate and the scale, --batch-size the size."
        ) from error
    where = "where the run stands" if finished else "the start, y brought near y*(x)"
    if given.json:
        figures = {one: getattr(found, one) for one in ("distance", "low", "high")}
        answer = {"verdict": found.verdict.name, "at": where, **figures}
        print(json.dumps({**answer, "largest_curvature": curvature}))
    else:
        print(f"Asked at {where}, where 1/L is {1 / curvature:.3g}: {found}")
        if found.verdict is Verdict.UNCLEAR:
            print("Here these are --batch-size and --estimates.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedbilevel diagnose",
        description="LocalBSGM, LocalBSGVRM and LFedNest follow the mean of the "
        "devices' own hypergradients. Measure how far that is from the right one, at "
        "the start of an experiment (by its file) or at the end of a run (by its "
        "folder).",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a file or a folder")
    parser.add_argument("--batch-size", type=int, default=64, help="of examples; 64")
    parser.add_argument("--terms", type=int, default=20, help="of the series; 20")
    parser.add_argument(
        "--estimates", type=int, default=20, help="more of them, less noise; 20"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.5,
        help="steps and series are this part of 1/L, since batches are more curved "
        "than the mean of all; 0.5",
    )
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser
