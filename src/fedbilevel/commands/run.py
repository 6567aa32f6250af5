"""`fedbilevel run FILE`: an experiment with live progress."""

from collections.abc import Sequence
from pathlib import Path

from fedbilevel.commands.arguments import asked
from fedbilevel.commands.run_monitor import conclude, follow
from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run_directory.runs import placed


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
    # What the command line says of files is meant from here.
    asked_for = located(asked_for, Path.cwd())
    kind = type(asked_for.algorithm)
    rival = kind is not type(written.algorithm) and asked_for.directory is None
    suffix = f"-{kind.__name__}" if rival else ""
    experiment, directory = placed(asked_for, file, suffix)
    remember_problem(experiment)
    end = follow(experiment, directory, resume=False, as_json=given.as_json)
    return conclude(directory, as_json=given.as_json) if end.is_finished else end.code
