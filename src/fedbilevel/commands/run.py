"""`fedbilevel run FILE`: an experiment with live progress."""

from collections.abc import Sequence
from pathlib import Path

from fedbilevel.commands.asking import asked
from fedbilevel.commands.following import follow, sum_up
from fedbilevel.experiments.folders import has_checkpoints
from fedbilevel.experiments.overrides import with_overrides
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.experiments.runs import begin, placed


def main(arguments: Sequence[str]) -> int:
    """Run an experiment file.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("run", "FILE", arguments)
    file = Path(given.subject)
    written = read_experiment(file)
    asked_for = with_overrides(written, given.options, f"fedbilevel run {file}")
    kind = type(asked_for.algorithm)
    rival = kind is not type(written.algorithm) and asked_for.folder is None
    suffix = f"-{kind.__name__}" if rival else ""
    experiment, folder = placed(asked_for, file, suffix)
    if has_checkpoints(folder):
        raise ValueError(
            f"{folder} has a run already; go on with it by: fedbilevel resume "
            f"{folder}, or give this one another --folder."
        )
    begin(experiment, folder)
    code = follow(experiment, folder, given.as_json)
    if not (code or given.as_json):
        sum_up(folder)
    return code
