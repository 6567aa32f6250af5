"""`fedbilevel run FILE`: an experiment with live progress."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedbilevel.commands.asking import asked
from fedbilevel.commands.following import follow
from fedbilevel.experiments.folders import EXPERIMENT, has_checkpoints
from fedbilevel.experiments.locating import located
from fedbilevel.experiments.overrides import with_overrides
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.experiments.writing import write_experiment


def main(arguments: Sequence[str]) -> int:
    """Run an experiment file.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("run", "FILE", arguments)
    file = Path(given.subject)
    experiment = with_overrides(
        read_experiment(file), given.options, f"fedbilevel run {file}"
    )
    # Found from anywhere, by the run's own copy of the experiment.
    experiment = located(experiment, file.parent)
    folder = experiment.folder or file.parent / "runs" / file.stem
    if has_checkpoints(folder):
        raise ValueError(
            f"{folder} has a run already; go on with it by: fedbilevel resume "
            f"{folder}, or give this one another --folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_experiment(replace(experiment, folder=None), folder / EXPERIMENT)
    return follow(experiment, folder, given.as_json)
