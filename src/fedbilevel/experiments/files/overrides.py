"""Options of the command line that override an experiment file."""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any, get_type_hints

from cattrs.errors import BaseValidationError

from fedbilevel.experiments.files.convert import converter
from fedbilevel.experiments.files.options import (
    Option,
    add_option,
    flag_of,
    options_of,
)
from fedbilevel.experiments.files.read import mistakes_of
from fedbilevel.experiments.files.write import plain
from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import (
    AUTO,
    TABLES,
    find_type,
    list_types,
    name_of,
)
from fedbilevel.mathematics.hypergradients import Hypergradient, NeumannSeries
from fedbilevel.nearest import nearest
from fedbilevel.usage import with_plain_errors

_TYPE = re.compile(rf"({'|'.join(TABLES)}):(.+)")
_FLAG = re.compile(r"^--[\w.-]+")
_NAME = re.compile(rf"--({'|'.join(TABLES)})\.name(=.*)?")


def with_overrides(
    experiment: Experiment,
    arguments: Sequence[str],
    program: str,
    *,
    command_options: Iterable[str] = (),
) -> Experiment:
    """Return the experiment with the overrides of the command line.

    Every field is an option, `--algorithm.learning-rate 0.1`; a word such as
    `algorithm:FedBiO` selects another type of problem, algorithm or engine.

    Args:
        experiment: the experiment of the file.
        arguments: arguments of the command line after the file.
        program: name of the command in its help.
        command_options: options of the command itself, to suggest for a misspelt one.

    Raises:
        ValueError: if an option or its value is invalid.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1))
        >>> arguments = ["--rounds", "7", "algorithm:SimFBO"]
        >>> arguments += ["--algorithm.learning-rate", "0.2"]
        >>> changed = with_overrides(experiment, arguments, "fedbilevel run")
        >>> changed.rounds, changed.algorithm.learning_rate
        (7, 0.2)
    """
    for argument in arguments:
        if match := _NAME.fullmatch(argument):
            raise ValueError(
                f"{argument} is not an option; select the type by a subcommand, such "
                f"as {match[1]}:{list(list_types(match[1]))[-1]}."
            )
    document, tables = plain(experiment), {t: getattr(experiment, t) for t in TABLES}
    if document["algorithm"] == AUTO:
        document["algorithm"] = {"name": AUTO}
    for match in filter(None, map(_TYPE.fullmatch, arguments)):
        table, cls = match[1], _find(*match.groups())
        if type(tables[table]) is not cls:
            tables[table], document[table] = cls, _empty(table, cls)
    options = [
        option for option in options_of(experiment) if option.table not in tables
    ]
    options += chain(*(options_of(table, (name,)) for name, table in tables.items()))
    options.sort(key=lambda option: (option.table != "", option.table not in tables))
    parser = _parser(program, options, command_options)
    words = [
        # Keys of a file have underscores, and users may write them in options.
        _FLAG.sub(lambda flag: flag[0].replace("_", "-"), text)
        for text in arguments
        if not _TYPE.fullmatch(text)
    ]
    parsed, others = parser.parse_known_args(words)
    if others and not others[0].startswith("-"):
        parser.error(
            f"{others[0]} is neither an option nor a type such as algorithm:FedBiO. "
            "Remove it."
        )
    if others:
        parser.error(f"unrecognized arguments: {others[0]}")
    for name, value in vars(parsed).items():
        _set(document, name.split("."), value)
    try:
        result: Experiment = converter().structure(document, Experiment)
    except BaseValidationError as error:
        mistakes = list(mistakes_of(error))
        missing = [flag_of(mistake.path) for mistake in mistakes if mistake.missing]
        if missing:
            # An absent table lacks all of its options.
            flags = [
                option.flag
                for option in options
                if f"{option.flag}.".startswith(tuple(f"{flag}." for flag in missing))
            ]
            parser.error(f"Required options are missing. Give {', '.join(flags)}.")
        path, message = mistakes[0].path, mistakes[0].message
        parser.error(f"{flag_of(path)}{message.removeprefix('.'.join(path))}")
    return result


def _parser(
    program: str, options: Iterable[Option], command_options: Iterable[str]
) -> argparse.ArgumentParser:
    parser = with_plain_errors(
        argparse.ArgumentParser(
            prog=program,
            usage=f"{program} [OPTIONS]",
            description="Options override the keys of the file. Another algorithm, "
            "problem or engine is selected by algorithm:NAME, problem:NAME or "
            "engine:NAME, anywhere among the options.",
            allow_abbrev=False,
        )
    )
    for name in command_options:
        if name not in parser._option_string_actions:
            parser.add_argument(name, help=argparse.SUPPRESS)
    groups: dict[str, Any] = {}
    for option in options:
        title = f"{option.table or 'run'} options"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        add_option(groups[title], option)
    return parser


def _set(document: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a key of a document, or remove it if the value is None."""
    *tables, key = path
    for table in tables:
        document = document.setdefault(table, {})
    document.pop(key, None)
    if value not in (None, [None]):
        document[key] = value


def _find(table: str, name: str) -> type:
    def normalise(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    known = {normalise(cls.__name__): cls for cls in list_types(table).values()}
    if normalise(name) in known:
        return known[normalise(name)]
    if ":" in name:
        return find_type(table, name)
    cure = nearest(name, [cls.__name__ for cls in known.values()])
    raise ValueError(f"{table}:{name} selects an unknown type; {cure}")


def _empty(table: str, cls: type) -> dict[str, Any]:
    """Return a table of a type, with the paper's estimator of a hypergradient."""
    hints = get_type_hints(cls)
    estimator = {"name": NeumannSeries.__name__}
    estimators = {
        field.name: estimator
        for field in fields(cls)
        if hints[field.name] is Hypergradient and field.default is MISSING
    }
    return {"name": name_of(table, cls), **estimators}
