"""`fedbilevel resume DIRECTORY`: a run goes on from its newest checkpoint."""

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from fedbilevel.commands.arguments import asked
from fedbilevel.commands.consent import consent
from fedbilevel.commands.run_monitor import conclude, follow
from fedbilevel.engines.checkpoints.options import CheckpointError
from fedbilevel.experiments.auto_rounds import with_initial_rounds
from fedbilevel.experiments.baseline import lacks_baseline
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import PROBLEM, RUN, SOLUTION
from fedbilevel.experiments.run_directory.runs import asked_of, finished, problem_edited
from fedbilevel.experiments.schema import CustomProblem, Experiment


def main(arguments: Sequence[str]) -> int:
    """Go on with a run.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("resume", "DIRECTORY", arguments, trusting=True)
    directory = Path(given.subject)
    if (directory / RUN).exists():
        raise ValueError(
            f"the run in {directory} is one across sites; go on with it by the "
            "fedbilevel federate that began it."
        )
    begun = asked_of(directory)
    experiment = with_overrides(
        with_initial_rounds(begun, begun),
        given.options,
        f"fedbilevel resume {directory}",
    )
    if experiment.directory is not None:
        raise ValueError(
            f"--directory: a run goes on where it is, in {directory}; leave it out, or copy "
            "the directory."
        )
    failure = read_failure(directory)
    if not given.options and failure is not None:
        raise ValueError(
            f"the run in {directory} failed, {failure} To resume it with the same "
            "settings is to fail again; run the experiment with other settings in "
            "another --directory, or find the first number that is not finite: "
            f"fedbilevel resume {quote(str(directory))} engine:DebugSimulation"
        )
    done = finished(experiment, directory) and not lacks_baseline(experiment, directory)
    done = done and (directory / SOLUTION).exists()
    if done and not given.options:
        print(
            f"the run in {directory} is finished; --rounds with more than "
            f"{experiment.rounds} goes on.",
            file=sys.stderr,
        )
        return conclude(directory, as_json=given.as_json)
    # What the command line names is the user's own choice.
    named_here = experiment.problem != begun.problem
    consent(experiment, directory, trust=given.trust or named_here)
    try:
        end = follow(experiment, directory, resume=True, as_json=given.as_json)
    except CheckpointError as error:
        if not problem_edited(experiment, directory):
            raise
        raise ValueError(_edited(experiment, directory, error)) from error
    return conclude(directory, as_json=given.as_json) if end.is_finished else end.code


def _edited(experiment: Experiment, directory: Path, error: CheckpointError) -> str:
    assert isinstance(experiment.problem, CustomProblem), (
        "only a custom problem has a file"
    )
    file, copy = experiment.problem.file, directory / PROBLEM
    return (
        f"{file} was edited since the run in {directory} began; the file as it was run is "
        f"{copy}. See the changes by: diff {quote(str(copy))} {quote(str(file))}; undo "
        "them to resume the run, or run the edited file with another --directory. "
        f"({error})"
    )
