"""The options that override the keys of an experiment file."""

import argparse
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fedbilevel.experiments.files.write import format_value
from fedbilevel.mathematics.hypergradients import Hypergradient, NeumannSeries
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.settings import attribute_help, unmarked


class Option(NamedTuple):
    """An option, which sets one key.

    Attributes:
        path: the key and the tables around it, outermost first.
        hint: type of the value.
        help: description of the key.
        default: value without the option; None for none.
    """

    path: tuple[str, ...]
    hint: Any
    help: str
    default: Any

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return flag_of(self.path)

    @property
    def table(self) -> str:
        """The outermost table around the key; empty for a key without a table."""
        return self.path[0] if self.path[1:] else ""


def flag_of(path: tuple[str, ...]) -> str:
    """Return the option of a key.

    Example:
        >>> flag_of(("data", "label_noise"))
        '--data.label-noise'
    """
    return f"--{'.'.join(path)}".replace("_", "-")


def options_of(table: Any, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield the options of a table and of the tables in it.

    Args:
        table: a dataclass of the schema, whose values are the defaults; or its type.
        path: key of the table and the tables around it.

    Example:
        >>> from fedbilevel import FedBiO
        >>> [option.flag for option in options_of(FedBiO, ("algorithm",))][:2]
        ['--algorithm.learning-rate', '--algorithm.upper-rate']
    """
    cls: Any = table if isinstance(table, type) else type(table)
    hints = get_type_hints(cls)
    for field in fields(cls):
        key, value = (*path, field.name), getattr(table, field.name, None)
        hint = unmarked(hints[field.name])
        hint = NeumannSeries if hint is Hypergradient else hint
        inner = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
        # An optimiser is one option, whose value is a table.
        if not inner or OptaxOptimiser in inner:
            yield Option(key, hint, attribute_help(cls, field.name), value)
        else:
            yield from options_of(value if is_dataclass(value) else inner[0], key)


def add_option(group: Any, option: Option) -> argparse.Action:
    """Add an option to an argument parser, or to a group of it.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> action = add_option(parser, Option(("rounds",), int, "number of rounds", 9))
        >>> action.help, parser.parse_args(["--rounds", "3"]).rounds
        ('number of rounds (default: 9)', 3)
    """
    default = "" if option.default is None else format_value(option.default)
    text = f"{option.help} (default: {default})" if default else option.help
    settings: dict[str, Any] = {"help": text.replace("%", "%%")}
    settings |= {"dest": ".".join(option.path), "default": argparse.SUPPRESS}
    if option.hint is bool:
        before, _, key = option.flag.rpartition(".")
        off = f"{before}.no-{key}" if before else f"--no-{key.removeprefix('--')}"
        action: argparse.Action = group.add_argument(
            option.flag, off, action=_Switch, nargs=0, **settings
        )
        return action
    kinds = [kind for kind in get_args(option.hint) if kind is not NoneType]
    kind = kinds[0] if len(kinds) == 1 else option.hint
    if get_origin(kind) is tuple:
        types = [part for part in get_args(kind) if part is not Ellipsis]
        if len(set(types)) > 1:
            parsers = [PARSERS.get(part, PARSERS[object]) for part in types]
            metavars, settings["const"] = zip(*parsers, strict=True)
            settings |= {"nargs": len(types), "metavar": metavars}
            action = group.add_argument(option.flag, action=_Values, **settings)
            return action
        # None removes an optional list; no value empties any other.
        kind, is_optional = types[0], NoneType in get_args(option.hint)
        settings["nargs"] = "+" if is_optional else "*"
    settings["metavar"], parse = PARSERS.get(kind, PARSERS[object])
    if get_origin(kind) is Literal:
        settings |= {"metavar": None, "choices": get_args(kind)}
        parse = str
    settings["type"] = _or_none(parse) if NoneType in get_args(option.hint) else parse
    action = group.add_argument(option.flag, **settings)
    return action


class _Switch(argparse.Action):
    """An option that is true by its first name, and false by its second."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, name: str | None = None
    ) -> None:
        setattr(namespace, self.dest, name == self.option_strings[0])


class _Values(argparse.Action):
    """An option with values of several types, whose parsers are its `const`."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, name: str | None = None
    ) -> None:
        parts = [
            argparse.Action(self.option_strings, self.dest, type=parse)
            for parse in self.const
        ]
        parsed = list(map(parser._get_value, parts, values))
        setattr(namespace, self.dest, parsed)


def _or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    @wraps(parse)
    def parse_or_none(text: str) -> Any:
        return None if text == "None" else parse(text)

    return parse_or_none


def _toml(wanted: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        message = f"give {wanted}, not {text!r}."
        raise argparse.ArgumentTypeError(message) from None


PARSERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("INT", int),
    float: ("FLOAT", float),
    str: ("TEXT", str),
    Path: ("PATH", str),
    OptaxOptimiser: ("TABLE", partial(_toml, "a TOML table")),
    object: ("NUMBER", partial(_toml, "a number or a TOML table")),
}
"""Metavar and parser of a value, by its type; `object` stands for all other types."""
