"""Command-line arguments of `run`, `resume` and `federate`."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from fedbilevel.commands.consent import add_trust
from fedbilevel.commands.formatting import JSON_HELP
from fedbilevel.experiments.files.options import add_option, options_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.usage import with_plain_errors

CHANGEABLE = ("rounds", "evaluation.every", "checkpoints.every")
"""Keys whose options can differ when any run is resumed."""

COMMON = (
    *CHANGEABLE,
    "seed",
    "participants",
    "weight_by_size",
    "norm_limit",
    "server_optimiser",
    "directory",
)
"""Keys with options that every experiment file has, whatever types it names."""


class Arguments(NamedTuple):
    """Parsed arguments of a command.

    Attributes:
        subject: path of the experiment file or run directory.
        as_json: whether to print JSON lines.
        options: remaining arguments, which override the experiment.
        trust: whether to execute the problem file without a question.
        dry_run: whether to print the run and its costs instead of running it.
    """

    subject: str
    as_json: bool
    options: list[str]
    trust: bool = False
    dry_run: bool = False


def parse_arguments(
    command: str,
    subject: str,
    arguments: Sequence[str],
    description: str,
    has_trust: bool = False,
) -> Arguments:
    """Return the parsed arguments of a command.

    Args:
        command: name of the command.
        subject: metavar of its positional argument, FILE or RUN_DIRECTORY.
        arguments: command-line arguments after the command.
        description: first sentences of the help text.
        has_trust: whether the command has the option --trust.

    Example:
        >>> argv = ["first.toml", "--json", "--rounds", "3"]
        >>> parse_arguments("run", "FILE", argv, "Run an experiment file.")
        Arguments(subject='first.toml', as_json=True, options=['--rounds', '3'],
              trust=False, dry_run=False)
    """
    parser = with_plain_errors(subject_parser(command, subject, description, has_trust))
    if arguments and arguments[0] in ("-h", "--help"):
        _print_help(parser, subject == "FILE")
        parser.exit()
    if arguments and not arguments[0]:
        parser.error(f"{subject} is empty. Give a path.")
    if arguments and arguments[0].startswith("-"):
        parser.error(
            f"{arguments[0]} comes before {subject}. Give {subject} before options."
        )
    parsed, options = parser.parse_known_args(arguments)
    return Arguments(
        parsed.subject,
        parsed.json,
        options,
        trust=has_trust and parsed.trust,
        dry_run=command == "run" and parsed.dry_run,
    )


def subject_parser(
    command: str, subject: str, description: str = "", has_trust: bool = False
) -> argparse.ArgumentParser:
    """Return the argument parser of a command about one file or directory."""
    parser = argparse.ArgumentParser(
        prog=f"fedbilevel {command}",
        usage=f"fedbilevel {command} {subject} [OPTIONS]",
        add_help=False,
        description=description,
        epilog=f"fedbilevel {command} {subject} --help shows all options of {subject}. "
        "Another algorithm, problem or engine is selected by algorithm:NAME, "
        "problem:NAME or engine:NAME, followed by its options.",
    )
    parser.add_argument(
        "subject",
        metavar=subject,
        help="experiment file (.toml)" if subject == "FILE" else "run directory",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    if command == "run":
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print the settings and the predicted costs of the run, and exit",
        )
    if has_trust:
        add_trust(parser)
    return parser


def _print_help(parser: argparse.ArgumentParser, is_file: bool) -> None:
    """Print help, with options that `with_overrides` parses later."""
    parser.add_argument(
        "-h", "--help", action="store_true", help="show this help message and exit"
    )
    group = parser.add_argument_group(
        "options of every experiment",
        "They override FILE; defaults apply where FILE has no value."
        if is_file
        else "They override the settings of the run, which are the defaults.",
    )
    for option in options_of(Experiment):
        if ".".join(option.path) in (COMMON if is_file else CHANGEABLE):
            add_option(group, option)
    parser.print_help()
