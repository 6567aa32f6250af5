"""`fedbilevel resume FOLDER`: a run goes on from its newest checkpoint."""

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from fedbilevel.commands.asking import asked
from fedbilevel.commands.consent import consent
from fedbilevel.commands.following import conclude, follow
from fedbilevel.engines.checkpoints.options import CheckpointError
from fedbilevel.experiments.baseline import lacks_baseline
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.lengths import with_rates_of
from fedbilevel.experiments.run_directory.failures import read_failure
from fedbilevel.experiments.run_directory.layout import LEARNT, PROBLEM, RUN
from fedbilevel.experiments.run_directory.runs import asked_of, finished, problem_edited
from fedbilevel.experiments.schema import Experiment, Own


def main(arguments: Sequence[str]) -> int:
    """Go on with a run.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("resume", "FOLDER", arguments, trusting=True)
    folder = Path(given.subject)
    if (folder / RUN).exists():
        raise ValueError(
            f"the run in {folder} is one across sites; go on with it by the "
            "fedbilevel federate that began it."
        )
    begun = asked_of(folder)
    experiment = with_overrides(
        with_rates_of(begun, begun), given.options, f"fedbilevel resume {folder}"
    )
    if experiment.folder is not None:
        raise ValueError(
            f"--folder: a run goes on where it is, in {folder}; leave it out, or copy "
            "the folder."
        )
    failure = read_failure(folder)
    if not given.options and failure is not None:
        raise ValueError(
            f"the run in {folder} failed, {failure} To resume it with the same "
            "settings is to fail again; run the experiment with other settings in "
            "another --folder, or find the first number that is not finite: "
            f"fedbilevel resume {quote(str(folder))} engine:DebugSimulation"
        )
    done = finished(experiment, folder) and not lacks_baseline(experiment, folder)
    done = done and (folder / LEARNT).exists()
    if done and not given.options:
        print(
            f"the run in {folder} is finished; --rounds with more than "
            f"{experiment.rounds} goes on.",
            file=sys.stderr,
        )
        return conclude(folder, as_json=given.as_json)
    # What the command line names is the user's own choice.
    named_here = experiment.problem != begun.problem
    consent(experiment, folder, trust=given.trust or named_here)
    try:
        end = follow(experiment, folder, goes_on=True, as_json=given.as_json)
    except CheckpointError as error:
        if not problem_edited(experiment, folder):
            raise
        raise ValueError(_edited(experiment, folder, error)) from error
    return conclude(folder, as_json=given.as_json) if end.is_finished else end.code


def _edited(experiment: Experiment, folder: Path, error: CheckpointError) -> str:
    assert isinstance(experiment.problem, Own), "only a custom problem has a file"
    file, copy = experiment.problem.file, folder / PROBLEM
    return (
        f"{file} was edited since the run in {folder} began; the file as it was run is "
        f"{copy}. See the changes by: diff {quote(str(copy))} {quote(str(file))}; undo "
        "them to resume the run, or run the edited file with another --folder. "
        f"({error})"
    )
