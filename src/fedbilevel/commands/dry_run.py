"""`fedbilevel run FILE --dry-run`: print an experiment and its predicted costs."""

import json
from pathlib import Path

import jax
import numpy as np

from fedbilevel.commands.formatting import format_number, format_table
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.predicted_costs import predict_costs
from fedbilevel.experiments.baseline import baseline_run, has_baseline
from fedbilevel.experiments.files.write import settings_of
from fedbilevel.experiments.run import occupied_message, prepare_run, run_of
from fedbilevel.experiments.run_directory.layout import has_checkpoints
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

    Raises:
        ValueError: if `run` would refuse the experiment. If the cause is another run in
            the directory, the costs are printed first.
    """
    prepared = prepare_run(experiment)
    devices = prepared.devices.device_count
    participants = experiment.participants or devices
    costs = predict_costs(run_of(experiment, prepared))
    baseline = (
        predict_costs(baseline_run(experiment, prepared))
        if has_baseline(experiment)
        else None
    )
    in_use = has_checkpoints(directory)
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
            **costs._asdict(),
            "baseline": None if baseline is None else baseline._asdict(),
            "settings": settings,
        }
        print(json.dumps(facts, default=str))
    else:
        used = " (has a run already)" if in_use else ""
        rows = [
            ("experiment", experiment.title),
            ("run directory", f"{directory}{used}"),
            ("x", _variable(prepared.x)),
            ("y", _variable(prepared.y)),
            ("devices", f"{devices}; participants in each round: {participants}"),
            ("rounds", str(experiment.rounds)),
            ("costs", _format(costs)),
        ]
        if baseline is not None:
            rows.append(("baseline without tuning", _format(baseline)))
        rows += [
            (name, json.dumps(value, default=str)) for name, value in settings.items()
        ]
        print(format_table(rows, numbers=()))
        print("Dry run: no round was run and nothing was written.")
    if in_use:
        raise ValueError(occupied_message(directory))
    return 0


def _format(costs: Costs) -> str:
    return (
        f"exchanges: {costs.exchanges}; samples: {format_number(costs.upper_samples)} "
        f"of the upper loss, {format_number(costs.lower_samples)} of the lower loss; "
        f"{format_number(costs.bytes_down)}B to devices, "
        f"{format_number(costs.bytes_up)}B from devices"
    )


def _variable(tree: object) -> str:
    """Return the number of entries and the shapes of a variable."""
    entries = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))
    return f"{format_number(entries)} entries: {forms(tree)}"
