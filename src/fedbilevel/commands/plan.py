"""`fedbilevel plan RUN_DIRECTORY`: settings for other devices and accuracies."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from fedbilevel.algorithms.optional import Scaled
from fedbilevel.algorithms.scaling import plan_from, with_plan
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.commands.formatting import JSON_HELP, format_table
from fedbilevel.engines.predicted_costs import predict_costs
from fedbilevel.engines.run import Run
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.runs import read_run
from fedbilevel.experiments.run_directory.solution import read_solution
from fedbilevel.experiments.schema import Experiment
from fedbilevel.mathematics.schedules import CubeRootDecay
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.metrics.stationarity import HYPERGRADIENT, LOWER_ERROR
from fedbilevel.plurals import count_noun
from fedbilevel.problems.task import Task
from fedbilevel.theory.plans import Plan, plan_for_accuracy
from fedbilevel.tracking.records import Record
from fedbilevel.usage import UsageError, with_plain_errors

SYMBOLS = {
    "devices": "K",
    "steps": "T",
    "accuracy": "ε",
    "local_steps": "p",
    "learning_rate": "η",
    "terms": "Q",
    "initial_batch_size": "B",
}
"""Symbols of the paper."""


def main(arguments: Sequence[str]) -> int:
    """Derive the settings of a new run from a finished one."""
    if any(argument.startswith("--eps") for argument in arguments):
        raise UsageError(
            "--epsilon is not an option of fedbilevel plan. For the noise of an ε, "
            "give: fedbilevel noise FILE --epsilon FLOAT. For the ε of the paper, give "
            "--accuracy. See fedbilevel plan --help."
        )
    options = with_plain_errors(command_parser()).parse_args(arguments)
    directory = options.directory
    experiment, records = read_run(directory)
    algorithm: Any = experiment.algorithm
    if find_layer(algorithm, Scaled) is None:
        raise ValueError(
            f"The run in {directory} used {type(algorithm).__name__}, but the paper's "
            "corollaries apply only to LocalBSGM and LocalBSGVRM. Run one of them "
            "first: fedbilevel run FILE algorithm:LocalBSGM"
        )
    consent(experiment, directory, options.trust)
    task = build_task(experiment)
    devices = experiment.participants or task.devices.device_count
    reached = options.reached
    if reached is None:
        reached = _reached(records, directory)
    anchor = plan_from(
        algorithm,
        devices=devices,
        steps=records[-1].rounds * algorithm.local_steps,
        accuracy=reached,
    )
    plan = plan_for_accuracy(
        anchor,
        devices=devices if options.devices is None else options.devices,
        accuracy=anchor.accuracy if options.accuracy is None else options.accuracy,
        contraction=options.contraction,
    )
    planned: Any = with_plan(algorithm, plan)
    weights = weights_of(experiment, task.devices)
    solution = read_solution(directory, task)
    curvature = largest_curvature(
        task.problem, task.devices, *solution, weights=weights
    )
    _warn_of_large_steps(planned, curvature)
    _print(anchor, plan, _predicted(task, planned, plan), options.json)
    if options.out is not None:
        if options.out.exists():
            raise ValueError(
                f"--out: {options.out} already exists. Choose another file name."
            )
        enrolled = task.devices.device_count
        result = planned_experiment(experiment, planned, plan, enrolled)
        write_experiment(result, options.out)
    return 0


def _predicted(task: Task, planned: Any, plan: Plan) -> dict[str, int]:
    """Return the rounds and the costs of a planned run."""
    run = Run(task.problem, planned, task.devices, task.x, task.y, rounds=plan.rounds)
    costs = predict_costs(run, plan.devices)
    return {"rounds": plan.rounds, "samples": costs.samples, "bytes": costs.bytes}


def _print(anchor: Plan, plan: Plan, costs: dict[str, int], as_json: bool) -> None:
    settings = {k: v for k, v in asdict(plan).items() if k != "law"}
    if as_json:
        print(json.dumps({"plan": settings, "predicted": costs}))
        return
    rows = [
        [f"  {SYMBOLS.get(name, '')}", name, *map(_format, values)]
        for name in settings
        for values in [(getattr(anchor, name), getattr(plan, name))]
    ]
    print(format_table([["", "", "run", "plan"], *rows], numbers=(2, 3)))
    print("Predicted costs: " + ", ".join(f"{v:,} {k}" for k, v in costs.items()))


def planned_experiment(
    experiment: Experiment, algorithm: Any, plan: Plan, enrolled: int
) -> Experiment:
    """Return the experiment of a plan, with its number of participants.

    Args:
        experiment: experiment that the plan was derived from.
        algorithm: algorithm with the plan's settings.
        plan: plan for K devices.
        enrolled: number of devices of the experiment.

    Raises:
        ValueError: if the problem determines the number of devices.
    """
    result = replace(experiment, algorithm=algorithm, rounds=plan.rounds)
    is_sampled = experiment.participants is not None
    if is_sampled:
        result = replace(result, participants=plan.devices)
    fits = plan.devices <= enrolled if is_sampled else plan.devices == enrolled
    if fits:
        return result
    if experiment.brings_data or experiment.partition.has_sites:
        raise ValueError(
            f"--out: the plan is for {count_noun(plan.devices, 'device')}, but the "
            f"problem has {enrolled}. Change the number of devices of the problem, or "
            f"give --devices {enrolled}."
        )
    return replace(result, partition=replace(result.partition, devices=plan.devices))


def _warn_of_large_steps(planned: Any, curvature: float) -> None:
    rate: Any = planned.learning_rate
    largest = float(rate(0) if callable(rate) else rate) * float(planned.lower_rate)
    if largest > 1 / curvature:
        print(
            f"Warning: the plan's lower step size is {largest:.3g}, above 1/L = "
            f"{1 / curvature:.3g} at the end of the run, so training will likely "
            "diverge: the corollaries do not depend on L. Give fewer --devices, or "
            "plan from a run with a smaller learning_rate.",
            file=sys.stderr,
        )


def _format(value: float | int | CubeRootDecay) -> str:
    return str(value) if isinstance(value, CubeRootDecay) else f"{value:.6g}"


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel plan",
        description="Derive the settings for K devices and an accuracy ε from a "
        "finished run, by the paper's corollaries, and predict their costs.",
    )
    parser.add_argument(
        "directory", metavar="RUN_DIRECTORY", type=Path, help="run directory"
    )
    parser.add_argument(
        "--devices", metavar="INT", type=int, help="K (default: as in the run)"
    )
    parser.add_argument(
        "--accuracy",
        metavar="FLOAT",
        type=float,
        help="target ε of the mean of ‖∇Φ(x)‖² + ‖y − y*(x)‖² (default: as in the run)",
    )
    parser.add_argument(
        "--reached",
        metavar="FLOAT",
        type=float,
        help="ε that the run reached (default: measured by evaluation.metrics)",
    )
    parser.add_argument(
        "--contraction",
        metavar="FLOAT",
        type=float,
        default=0.9,
        help="1 − θμ, the factor by which each term of the Neumann series reduces its "
        "error (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="experiment file to write with the planned settings (default: none)",
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _reached(records: Sequence[Record], directory: Path) -> float:
    """Return the mean stationarity over all records of a run."""
    names = HYPERGRADIENT.name, LOWER_ERROR.name
    measured = [
        sum(record.metrics[name] for name in names)
        for record in records
        if all(name in record.metrics for name in names)
    ]
    if not measured:
        raise ValueError(
            f"The stationarity of the run in {directory} was not measured. Run it with "
            f"--evaluation.metrics {' '.join(names)}, or give --reached ε."
        )
    return mean(measured)
