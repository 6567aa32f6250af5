"""Messages about options that tyro refuses, in the style of all other messages."""

import re
from collections.abc import Iterable, Sequence
from itertools import dropwhile, takewhile

from fedbilevel.experiments.files.renamed_keys import new_option
from fedbilevel.nearest import nearest_name

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"[-─╰╯]{3,}")
_MESSAGES = (
    (
        r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.+)",
        r"\1 is \2. Give a whole number.",
    ),
    (
        r"Error parsing (\S+): could not convert string to float: (.+)",
        r"\1 is \2. Give a number.",
    ),
    (
        r"Error parsing (\S+): no type matching \{None\}\|(\S+) could be instantiated "
        r"from \[(.+?)\]\..*",
        r"\1 is \3. Give \2, or None.",
    ),
    (r"Error parsing (\S+): (.+)", r"\1: \2"),
    (
        r"invalid choice '(.+)' for argument '(.+)'\. Expected one of \((.+)\)\.",
        r"\2 is '\1'. Give one of \3.",
    ),
    (
        r"Missing value for argument '(.+?)'\..*",
        r"\1 has no value. Give the value after the option.",
    ),
    (
        r"Unrecognized options: ([^,]+).*",
        r"\1 is neither an option nor a type such as algorithm:FedBiO. Remove it.",
    ),
)
"""Patterns of tyro's messages, and our messages."""


def option_error(
    output: str, arguments: Sequence[str], known: Iterable[str], program: str
) -> str:
    """Return the message about arguments that tyro refused.

    Args:
        output: output of tyro, a box with a title.
        arguments: arguments of the command line.
        known: all options.
        program: name of the command.

    Example:
        >>> option_error("", ["--rouns", "3"], ["--rounds"], "fedbilevel run a.toml")
        '--rouns is not an option. Did you mean --rounds? See fedbilevel run a.toml
        --help.'
    """
    known = {*known, "--help"}
    unknown = (
        name
        for argument in arguments
        if (name := argument.partition("=")[0]).startswith("--")
        and name.replace("_", "-") not in known
    )
    for name in unknown:
        return unknown_option(name, known, program)
    return f"{_message(output)} See {program} --help."


def unknown_option(name: str, known: Iterable[str], program: str) -> str:
    """Return the message about an option that does not exist.

    Example:
        >>> unknown_option("--data.tail", ["--data.imbalance"], "fedbilevel run")
        '--data.tail was renamed to --data.imbalance. See fedbilevel run --help.'
    """
    new = new_option(name)
    if new is not None and new in known:
        return f"{name} was renamed to {new}. See {program} --help."
    near = nearest_name(name, known)
    question = f" Did you mean {near}?" if near else ""
    return f"{name} is not an option.{question} See {program} --help."


def _message(output: str) -> str:
    """Return the text of tyro's box from its title to the next rule."""
    rows = [row.strip("│ ") for row in _COLOUR.sub("", output).splitlines()[1:]]
    # Without UTF-8, tyro draws a rule of hyphens below the title.
    below = dropwhile(_RULE.fullmatch, rows)
    above = list(takewhile(lambda row: not _RULE.fullmatch(row), below))
    text = " ".join(above)
    if text.startswith("Missing from "):
        names = re.findall(r"^--\S+", "\n".join(above), re.MULTILINE)
        return f"Required options are missing. Give {', '.join(names)}."
    for pattern, message in _MESSAGES:
        if match := re.fullmatch(pattern, text):
            return match.expand(message)
    return text
