"""`fedbilevel run FILE --dry-run`: print an experiment and its predicted costs."""

import json
from pathlib import Path

import jax
import numpy as np

from fedbilevel.commands.formatting import format_number, format_table
from fedbilevel.engines.predicted_costs import predict_costs
from fedbilevel.experiments.files.write import settings_of
from fedbilevel.experiments.run import prepare_run, spec_of
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import Experiment
from fedbilevel.mathematics.tree import forms


def dry_run(experiment: Experiment, directory: Path, *, as_json: bool) -> int:
    """Print what `run` would do and what it would cost; return the exit code.

    Data are loaded and a custom problem's file is executed, since costs depend on the
    shapes of x and y. No round is run, and nothing is written.

    Args:
        experiment: the experiment.
        directory: the run directory that `run` would write to.
        as_json: whether to print JSON instead of text.
    """
    run = prepare_run(experiment)
    devices = run.devices.device_count
    participants = experiment.participants or devices
    spec = spec_of(experiment, run)
    costs = predict_costs(
        spec.problem,
        spec.algorithm,
        spec.devices,
        spec.x,
        spec.y,
        rounds=spec.rounds,
        participants=participants,
    )
    in_use = (directory / EXPERIMENT).exists()
    # `run` ignores the settings of a federation.
    settings = {
        name: value
        for name, value in settings_of(experiment).items()
        if not name.startswith("federation.")
    }
    if as_json:
        facts = {
            "title": experiment.title,
            "directory": str(directory),
            "directory_in_use": in_use,
            "rounds": experiment.rounds,
            "devices": devices,
            "participants": participants,
            "exchanges": costs.exchanges,
            "upper_samples": costs.upper_samples,
            "lower_samples": costs.lower_samples,
            "bytes_down": costs.bytes_down,
            "bytes_up": costs.bytes_up,
            "settings": settings,
        }
        print(json.dumps(facts, default=str))
        return 0
    used = " (holds a run already)" if in_use else ""
    rows = [
        ("experiment", experiment.title),
        ("run directory", f"{directory}{used}"),
        ("x", _variable(run.x)),
        ("y", _variable(run.y)),
        ("devices", f"{devices}, of which {participants} participate in each round"),
        ("rounds", f"{experiment.rounds}, with {costs.exchanges} exchanges in all"),
        (
            "samples",
            f"{format_number(costs.upper_samples)} for the upper loss, "
            f"{format_number(costs.lower_samples)} for the lower loss",
        ),
        (
            "bytes",
            f"{format_number(costs.bytes_down)}B to devices, "
            f"{format_number(costs.bytes_up)}B from devices",
        ),
    ]
    if experiment.evaluation.baseline:
        rows.append(("baseline", "the same again with x fixed, to compare with"))
    rows += [(name, json.dumps(value, default=str)) for name, value in settings.items()]
    print(format_table(rows, numbers=()))
    print("Dry run: no round was run and nothing was written.")
    return 0


def _variable(tree: object) -> str:
    """Return the number of entries and the shapes of a variable."""
    entries = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))
    return f"{format_number(entries)} entries: {forms(tree)}"
