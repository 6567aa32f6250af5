"""`fedbilevel plan RUN_DIRECTORY`: settings for other devices and accuracies."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf, nan
from pathlib import Path
from statistics import mean
from typing import Any

from fedbilevel.algorithms.optional import Scaled
from fedbilevel.algorithms.scaling import plan_from, with_plan
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.commands.formatting import JSON_HELP, format_table
from fedbilevel.commands.private_plan import print_private_plan
from fedbilevel.engines.predicted_costs import predict_costs
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.runs import read_run
from fedbilevel.experiments.run_directory.solution import read_solution
from fedbilevel.experiments.schema import Experiment
from fedbilevel.mathematics.schedules import CubeRootDecay
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.plurals import count_noun
from fedbilevel.theory.plans import Plan, plan_for_accuracy
from fedbilevel.tracking.records import Record
from fedbilevel.usage import with_plain_errors

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
    options = with_plain_errors(command_parser()).parse_args(arguments)
    directory = options.directory
    if options.epsilon is not None:
        _require_alone(options)
        experiment = _experiment_of(directory)
        consent(experiment, directory, options.trust)
        delta = options.delta or experiment.transforms.delta
        print_private_plan(
            experiment, options.epsilon, delta, options.json, options.examples
        )
        return 0
    if options.examples is not None:
        raise ValueError(
            "--examples has no effect without --epsilon, for which it replaces the "
            "data. Give --epsilon, or remove --examples."
        )
    if directory.is_file():
        raise ValueError(
            f"{directory} is an experiment file, which has no rounds to plan from. "
            "Give a run directory, or --epsilon for the noise of differential privacy."
        )
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
    anchor = plan_from(
        algorithm,
        devices=devices,
        steps=records[-1].rounds * algorithm.local_steps,
        accuracy=_reached(records, directory)
        if options.reached is None
        else options.reached,
    )
    plan = plan_for_accuracy(
        anchor,
        devices=devices if options.devices is None else options.devices,
        accuracy=anchor.accuracy if options.accuracy is None else options.accuracy,
        contraction=options.contraction,
    )
    planned: Any = with_plan(algorithm, plan)
    costs = predict_costs(
        task.problem,
        planned,
        task.devices,
        task.x,
        task.y,
        rounds=plan.rounds,
        participants=plan.devices,
    )
    predicted = {
        "rounds": plan.rounds,
        "samples": costs.samples,
        "bytes": costs.bytes,
    }
    solution = read_solution(directory, task)
    curvature = largest_curvature(
        task.problem,
        task.devices,
        *solution,
        weights=weights_of(experiment, task.devices),
    )
    _warn_of_large_steps(planned, curvature)
    settings = {k: v for k, v in asdict(plan).items() if k != "law"}
    if options.json:
        print(json.dumps({"plan": settings, "predicted": predicted}))
    else:
        rows = [
            [f"  {SYMBOLS.get(name, '')}", name, *map(_format, values)]
            for name in settings
            for values in [(getattr(anchor, name), getattr(plan, name))]
        ]
        print(format_table([["", "", "run", "plan"], *rows], numbers=(2, 3)))
        print(
            "Predicted costs: " + ", ".join(f"{v:,} {k}" for k, v in predicted.items())
        )
    if options.out is not None:
        if options.out.exists():
            raise ValueError(
                f"--out: {options.out} already exists. Choose another file name."
            )
        count = task.devices.device_count
        write_experiment(
            planned_experiment(experiment, planned, plan, count), options.out
        )
    return 0


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
    if experiment.brings_data or experiment.partition.natural:
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


def _require_alone(options: argparse.Namespace) -> None:
    """Raise if options of a plan from a run are given with --epsilon."""
    others = "devices", "accuracy", "reached", "out"
    for name in others:
        if getattr(options, name) is not None:
            raise ValueError(
                f"--{name} has no effect with --epsilon, which reads everything from "
                f"the file. Remove --{name}, or change the file."
            )


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel plan",
        description="Derive the settings for K devices and an accuracy ε from a "
        "finished run, by the paper's corollaries, and predict their costs. With "
        "--epsilon, compute the noise of differential privacy.",
    )
    parser.add_argument(
        "directory",
        metavar="RUN_DIRECTORY",
        type=Path,
        help="run directory; with --epsilon, also an experiment file",
    )
    parser.add_argument(
        "--epsilon",
        metavar="FLOAT",
        type=_positive,
        help="ε of differential privacy for which to compute the noise: by device, or "
        "by example if the file has example_noise",
    )
    parser.add_argument(
        "--delta",
        metavar="FLOAT",
        type=_share,
        help="δ of differential privacy (default: as in the file)",
    )
    parser.add_argument(
        "--examples",
        metavar="UPPER,LOWER",
        type=_counts,
        help="with --epsilon: smallest numbers of examples of a device, in place of "
        "the data; the problem file then needs model() only",
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
        help="ε that the run reached (default: measured by evaluation.stationarity)",
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


def _experiment_of(place: Path) -> Experiment:
    return read_experiment(place) if place.is_file() else read_run(place)[0]


def _positive(text: str) -> float:
    return _within(text, inf, "a number above 0")


def _share(text: str) -> float:
    return _within(text, 1.0, "a number above 0 and below 1")


def _counts(text: str) -> tuple[int, int]:
    try:
        upper, lower = map(int, text.split(","))
    except ValueError:
        upper = lower = 0
    if min(upper, lower) < 1:
        raise argparse.ArgumentTypeError(
            f"give the smallest numbers of upper and lower examples of a device, such "
            f"as 20,40, not {text}"
        )
    return upper, lower


def _within(text: str, below: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0 < value < below:
        raise argparse.ArgumentTypeError(f"give {expected}, not {text}")
    return value


def _reached(records: Sequence[Record], directory: Path) -> float:
    """Return the mean stationarity over all records of a run."""
    if "hypergradient" not in records[-1].metrics:
        raise ValueError(
            f"The stationarity of the run in {directory} was not measured. Run the "
            "experiment with --evaluation.stationarity, or give --reached ε."
        )
    return mean(
        record.metrics["hypergradient"] + record.metrics["lower_error"]
        for record in records
        if "hypergradient" in record.metrics
    )
