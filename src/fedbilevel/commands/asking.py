"""What commands about one file or folder have in common on the command line."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from fedbilevel.commands.consent import add_trust


class Asked(NamedTuple):
    """What a command was given.

    Attributes:
        subject: the file or folder.
        as_json: whether to print JSON for scripts.
        options: what else there is, for the experiment.
        trust: whether the problem's file may be executed without asking.

    Example:
        >>> Asked("first.toml", False, []).subject
        'first.toml'
    """

    subject: str
    as_json: bool
    options: list[str]
    trust: bool = False


def asked(
    command: str, subject: str, arguments: Sequence[str], trusting: bool = False
) -> Asked:
    """Return what a command was given.

    Args:
        command: its name.
        subject: what it is about, for the help.
        arguments: of the command line.
        trusting: whether it may execute a file that its subject names.

    Example:
        >>> asked("run", "FILE", ["first.toml", "--json", "--rounds", "3"])
        Asked(subject='first.toml', as_json=True, options=['--rounds', '3'],
              trust=False)
    """
    parser = subject_parser(command, subject, trusting)
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        parser.exit(0 if arguments else 2)
    if arguments[0].startswith("-"):
        parser.error(f"{subject} comes first, and options after it.")
    found, options = parser.parse_known_args(arguments)
    return Asked(found.subject, found.json, options, trusting and found.trust)


def subject_parser(
    command: str, subject: str, trusting: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of a command about one file or folder.

    Args:
        command: its name.
        subject: what it is about, for the help.
        trusting: whether it may execute a file that its subject names.

    Example:
        >>> subject_parser("run", "FILE").parse_args(["first.toml"]).subject
        'first.toml'
    """
    parser = argparse.ArgumentParser(
        prog=f"fedbilevel {command}",
        add_help=False,
        epilog=f"fedbilevel {command} {subject} --help lists every option.",
    )
    parser.add_argument("subject", metavar=subject)
    parser.add_argument("--json", action="store_true", help="lines of JSON, no words")
    if trusting:
        add_trust(parser)
    return parser
