"""`fedbilevel run FILE`: run an experiment with live progress."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from fedbilevel.commands.arguments import parse_arguments
from fedbilevel.commands.dry_run import dry_run
from fedbilevel.commands.run_monitor import conclude, follow
from fedbilevel.experiments.consent import remember_problem
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.read import check_problem_file, read_experiment
from fedbilevel.experiments.run_directory.runs import resolve_run_directory

DESCRIPTION = (
    "Run an experiment file with live progress, and write results and checkpoints to a "
    "run directory."
)


def main(arguments: Sequence[str]) -> int:
    """Run an experiment file."""
    options = parse_arguments("run", "FILE", arguments, DESCRIPTION)
    file = Path(options.subject)
    original = read_experiment(file)
    changed = with_overrides(
        original,
        options.options,
        f"fedbilevel run {quote(str(file))}",
        command_options=("--dry-run", "--json"),
    )
    # Paths on the command line are relative to the working directory, not to FILE.
    changed = located(changed, Path.cwd())
    check_problem_file(file, original, changed)
    algorithm = type(changed.algorithm)
    is_rival = algorithm is not type(original.algorithm) and changed.directory is None
    suffix = f"-{algorithm.__name__}" if is_rival else ""
    experiment, directory = resolve_run_directory(changed, file, suffix)
    remember_problem(experiment)
    if options.dry_run:
        return dry_run(experiment, directory, as_json=options.as_json)
    end = follow(experiment, directory, resume=False, as_json=options.as_json)
    if not end.is_finished:
        return end.code
    return conclude(directory, as_json=options.as_json, devices=end.names)
