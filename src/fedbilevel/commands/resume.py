"""`fedbilevel resume RUN_DIRECTORY`: resume a run from its newest checkpoint."""

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from fedbilevel.algorithms.optional import PlannedRounds
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.commands.arguments import parse_arguments
from fedbilevel.commands.consent import consent
from fedbilevel.commands.run_monitor import conclude, follow
from fedbilevel.engines.checkpoints.options import CheckpointError
from fedbilevel.experiments.auto_rounds import with_initial_rounds
from fedbilevel.experiments.baseline import lacks_baseline
from fedbilevel.experiments.differences import differences, format_differences
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import PROBLEM, RUN, SOLUTION
from fedbilevel.experiments.run_directory.runs import (
    finished,
    problem_edited,
    read_run_experiment,
)
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.plurals import count_noun

DESCRIPTION = (
    "Resume a stopped or crashed run from its newest checkpoint, or continue a "
    "finished run with more --rounds."
)

CHANGEABLE_TABLES = ("rounds", "evaluation", "checkpoints", "engine", "federation")
"""Settings that may differ when a run is resumed."""


def main(arguments: Sequence[str]) -> int:
    """Resume a run."""
    options = parse_arguments(
        "resume", "RUN_DIRECTORY", arguments, DESCRIPTION, has_trust=True
    )
    directory = Path(options.subject)
    if (directory / RUN).exists():
        raise ValueError(
            f"{directory} is the run directory of a federation. Resume it with the "
            "`fedbilevel federate` command that started it."
        )
    original = read_run_experiment(directory)
    initial = with_initial_rounds(original, original)
    experiment = with_overrides(
        initial,
        options.options,
        f"fedbilevel resume {quote(str(directory))}",
        command_options=("--json", "--trust"),
    )
    if experiment.directory is not None:
        raise ValueError(
            f"--directory cannot move the run in {directory}. Omit the option, or copy "
            "the run directory and resume the copy."
        )
    failure = read_failure(directory)
    if not options.options and failure is not None:
        raise ValueError(
            f"The run in {directory} failed, {failure} With the same settings it would "
            "fail again. Run the experiment with other settings in another "
            "--directory, or find the first value that is not finite: "
            f"fedbilevel resume {quote(str(directory))} engine:DebugSimulation"
        )
    is_complete = (
        finished(experiment, directory)
        and not lacks_baseline(experiment, directory)
        and (directory / SOLUTION).exists()
    )
    if is_complete and not options.options:
        print(
            f"The run in {directory} is finished after "
            f"{count_noun(experiment.rounds, 'round')}. To continue it, give a larger "
            "--rounds.",
            file=sys.stderr,
        )
        return conclude(directory, as_json=options.as_json)
    planner = find_layer(experiment.inner_algorithm, PlannedRounds)
    if planner is not None and experiment.rounds > planner.planned_rounds:
        print(
            f"Warning: {experiment.algorithm_name} planned {planner.planned_rounds} "
            "rounds. Rounds after these train y and leave x fixed. To tune x for "
            "longer, start a new run with "
            f"--rounds {experiment.rounds} and another --directory.",
            file=sys.stderr,
        )
    # A problem file named on the command line is the user's choice.
    is_override = experiment.problem != original.problem
    consent(experiment, directory, trust=options.trust or is_override)
    try:
        end = follow(experiment, directory, resume=True, as_json=options.as_json)
    except CheckpointError as error:
        is_edited = problem_edited(experiment, directory)
        # Checkpoints compare arrays and code; the settings behind them are plainer.
        changes = {
            name: values
            for name, values in differences(initial, experiment).items()
            if name.partition(".")[0] not in CHANGEABLE_TABLES
            and (is_edited or name != "problem.file")
        }
        if changes:
            raise ValueError(
                f"The run in {directory} cannot be resumed with other settings (run → "
                f"now): {format_differences(changes)}. Omit these options, or run the "
                "experiment with another --directory."
            ) from error
        if not is_edited:
            raise
        raise ValueError(_edit_message(experiment, directory)) from error
    if not end.is_finished:
        return end.code
    return conclude(directory, as_json=options.as_json, devices=end.names)


def _edit_message(experiment: Experiment, directory: Path) -> str:
    assert isinstance(experiment.problem, CustomProblem), (
        "only a custom problem has a file"
    )
    file, copy = experiment.problem.file, directory / PROBLEM
    return (
        f"{file} was edited since the run in {directory} began; the original is "
        f"{copy}. To see the changes: diff {quote(str(copy))} {quote(str(file))}. Undo "
        "them to resume the run, or run the edited file with another --directory."
    )
