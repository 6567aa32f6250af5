"""`fedbilevel plan FOLDER`: the paper's schedules for other devices and accuracies."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from fedbilevel.algorithms.local_bsgm import LocalBSGM
from fedbilevel.algorithms.local_bsgvrm import LocalBSGVRM
from fedbilevel.algorithms.scaling import plan_of, with_plan
from fedbilevel.commands.consent import add_trust, consent
from fedbilevel.commands.words import aligned
from fedbilevel.engines.predicted_costs import predict_costs
from fedbilevel.experiments.build import task_of, weights_of
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.runs import read_run
from fedbilevel.experiments.run_directory.solution import read_learnt
from fedbilevel.experiments.schema import Experiment
from fedbilevel.mathematics.schedules import CubeRootDecay
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.theory.plans import Plan, plan_for_accuracy
from fedbilevel.tracking.records import Record

SYMBOLS = {
    "devices": "K",
    "steps": "T",
    "accuracy": "ε",
    "local_steps": "p",
    "learning_rate": "η",
    "terms": "Q",
    "opening_batch_size": "B",
}
"""What the paper calls them."""


def main(arguments: Sequence[str]) -> int:
    """Plan a run from one that was made.

    Example:
        >>> main.__name__
        'main'
    """
    given = command_parser().parse_args(arguments)
    experiment, records = read_run(given.folder)
    algorithm = experiment.algorithm
    if not isinstance(algorithm, LocalBSGM | LocalBSGVRM):
        raise ValueError(
            f"{given.folder} ran {type(algorithm).__name__}, and the paper's "
            "corollaries are about LocalBSGM and LocalBSGVRM; run one of these first."
        )
    consent(experiment, given.folder, given.trust)
    task = task_of(experiment)
    devices = experiment.participants or task.devices.device_count
    anchor = plan_of(
        algorithm,
        devices=devices,
        steps=records[-1].rounds * algorithm.local_steps,
        accuracy=_reached(records, given.folder)
        if given.reached is None
        else given.reached,
    )
    plan = plan_for_accuracy(
        anchor,
        devices=devices if given.devices is None else given.devices,
        accuracy=anchor.accuracy if given.accuracy is None else given.accuracy,
        contraction=given.contraction,
    )
    planned: Any = with_plan(algorithm, plan)
    spent = predict_costs(
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
        "samples": spent.samples,
        "bytes": spent.bytes,
    }
    learnt = read_learnt(given.folder, task)
    curvature = largest_curvature(
        task.problem,
        task.devices,
        *learnt,
        weights=weights_of(experiment, task.devices),
    )
    _warn_of_long_steps(planned, curvature)
    settings = {k: v for k, v in asdict(plan).items() if k != "law"}
    if given.json:
        print(json.dumps({"plan": settings, "predicted": predicted}))
    else:
        rows = [
            [f"  {SYMBOLS.get(name, '')}", name, *map(_shown, values)]
            for name in settings
            for values in [(getattr(anchor, name), getattr(plan, name))]
        ]
        print(aligned([["", "", "the run", "the plan"], *rows], numbers=(2, 3)))
        print("predicted: " + ", ".join(f"{v:,} {k}" for k, v in predicted.items()))
    if given.out is not None:
        if given.out.exists():
            raise ValueError(f"{given.out} exists already; choose another --out.")
        made = planned_experiment(experiment, planned, plan, task.devices.device_count)
        write_experiment(made, given.out)
    return 0


def planned_experiment(
    experiment: Experiment, algorithm: Any, plan: Plan, enrolled: int
) -> Experiment:
    """Return the experiment of a plan: as many devices take part as it says.

    Args:
        experiment: that the plan was made from.
        algorithm: with the plan's settings.
        plan: of K devices.
        enrolled: the devices of the experiment.

    Raises:
        ValueError: if the number of devices is not the experiment's to choose.

    Example:
        >>> planned_experiment.__name__
        'planned_experiment'
    """
    made = replace(experiment, algorithm=algorithm, rounds=plan.rounds)
    sampled = experiment.participants is not None
    if sampled:
        made = replace(made, participants=plan.devices)
    fits = plan.devices <= enrolled if sampled else plan.devices == enrolled
    if fits:
        return made
    if experiment.brings_data or experiment.partition.natural:
        raise ValueError(
            f"--out: the plan is for {plan.devices} devices, but the problem itself "
            f"brings {enrolled}; change that first."
        )
    return replace(made, partition=replace(made.partition, devices=plan.devices))


def _warn_of_long_steps(planned: LocalBSGM | LocalBSGVRM, curvature: float) -> None:
    rate: Any = planned.learning_rate
    longest = float(rate(0) if callable(rate) else rate) * float(planned.lower_rate)
    if longest > 1 / curvature:
        print(
            f"warning: the plan's steps on y are {longest:.3g} long, above 1/L = "
            f"{1 / curvature:.3g} at the end of the run, and will likely diverge: the "
            "corollaries know nothing of L. Go to fewer devices, or begin with a "
            "smaller learning_rate.",
            file=sys.stderr,
        )


def _shown(value: float | int | CubeRootDecay) -> str:
    return str(value) if isinstance(value, CubeRootDecay) else f"{value:.6g}"


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel plan'
    """
    parser = argparse.ArgumentParser(
        prog="fedbilevel plan",
        description="Turn settings that worked into settings for K devices and an "
        "accuracy ε, by the paper's corollaries, and predict what they cost.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of a run")
    parser.add_argument("--devices", type=int, help="K; as many as before")
    parser.add_argument(
        "--accuracy",
        type=float,
        help="ε, the mean of ‖∇Φ(x)‖² + ‖y − y*(x)‖² to reach; as before",
    )
    parser.add_argument(
        "--reached", type=float, help="that mean of the run, if it did not measure it"
    )
    parser.add_argument(
        "--contraction",
        type=float,
        default=0.9,
        help="1 − θμ: what each term of the series leaves of its error; 0.9",
    )
    parser.add_argument("--out", type=Path, help="write an experiment file")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    return parser


def _reached(records: Sequence[Record], folder: Path) -> float:
    """Return the mean stationarity over what was measured of a run."""
    if "hypergradient" not in records[-1].figures:
        raise ValueError(
            f"{folder} has no measured stationarity; run with "
            "--evaluation.stationarity, or say --reached ε."
        )
    return mean(
        one.figures["hypergradient"] + one.figures["lower_error"]
        for one in records
        if "hypergradient" in one.figures
    )
