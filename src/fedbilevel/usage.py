"""Messages about arguments that argparse refuses, in the style of other messages."""

import argparse
import re
from typing import NoReturn

from fedbilevel.nearest import nearest_name

VALUES = {
    "int": "a whole number",
    "float": "a number",
    "_counts": "two whole numbers, such as 20,40",
}
"""Descriptions of values, by the names of their types."""
NEGATIVE = re.compile(r"^-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$", re.IGNORECASE)
"""A negative number, which is no option."""


class UsageError(ValueError):
    """Arguments that a command does not accept."""


def with_plain_errors(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return a parser that raises `UsageError` instead of ending the program.

    Example:
        >>> parser = argparse.ArgumentParser(prog="fedbilevel tune")
        >>> _ = parser.add_argument("--seeds", type=int)
        >>> with_plain_errors(parser).parse_args(["--seed=many"])
        Traceback (most recent call last):
        ...
        fedbilevel.usage.UsageError: --seeds is 'many'. Give a whole number.
        See fedbilevel tune --help.
    """

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{_explain(parser, message)} See {parser.prog} --help.")

    # Before Python 3.14, argparse takes -1e-3 for an option.
    parser._negative_number_matcher = NEGATIVE
    # The method that argparse documents for this purpose.
    parser.error = refuse  # type: ignore[method-assign]
    return parser


def _explain(parser: argparse.ArgumentParser, message: str) -> str:
    """Return cause and cure of a message of argparse."""
    if match := re.fullmatch(r"unrecognized arguments: (.+)", message):
        name = match[1].split()[0].partition("=")[0]
        if not name.startswith("-"):
            return f"{name} is one argument too many. Remove it."
        near = nearest_name(name, parser._option_string_actions)
        return f"{name} is not an option." + (f" Did you mean {near}?" if near else "")
    if match := re.fullmatch(r"the following arguments are required: (.+)", message):
        return f"{match[1]} is missing. {_cure(parser, match[1])}"
    if match := re.fullmatch(r"argument (.+?): invalid (\w+) value: (.+)", message):
        return f"{match[1]} is {match[3]}. Give {VALUES.get(match[2], match[2])}."
    if match := re.fullmatch(r"argument (.+?): invalid choice: (.+) \(.+", message):
        near = nearest_name(match[2].strip("'"), _choices(parser, match[1]))
        cure = f"Did you mean {near}?" if near else _cure(parser, match[1])
        return f"{match[1]} is {match[2]}. {cure}"
    if match := re.fullmatch(r"argument (.+?): expected (\d+) arguments", message):
        return f"{match[1]} has another number of values. Give {match[2]}."
    if match := re.fullmatch(r"argument (.+?): expected .+", message):
        return f"{match[1]} has no value. {_cure(parser, match[1])}"
    text = message.removeprefix("argument ")
    return text if text.endswith((".", "?")) else f"{text}."


def _cure(parser: argparse.ArgumentParser, name: str) -> str:
    choices = _choices(parser, name)
    if choices:
        return f"Give one of {', '.join(choices)}."
    if name.startswith("-"):
        return "Give the value after the option."
    return f"Give {name} after {parser.prog}."


def _choices(parser: argparse.ArgumentParser, name: str) -> list[str]:
    """Return the choices of an argument, by the name that argparse prints."""
    for action in parser._actions:
        names = "/".join(action.option_strings), action.metavar, action.dest
        if name in names and action.choices is not None:
            return list(action.choices)
    return []
