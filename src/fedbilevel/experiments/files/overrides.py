"""Options of the command line that override an experiment file."""

import inspect
import io
import re
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import reduce
from operator import or_
from typing import Any, get_type_hints

import tyro
from tyro import MISSING
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from fedbilevel.experiments.files.convert import converter
from fedbilevel.experiments.files.option_errors import option_error
from fedbilevel.experiments.files.option_names import options_of
from fedbilevel.experiments.files.type_options import (
    chosen_types,
    order_arguments,
    types_for,
)
from fedbilevel.experiments.files.write import format_value
from fedbilevel.experiments.schema import Experiment
from fedbilevel.mathematics.hypergradients import Hypergradient, NeumannSeries
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.schedules import LearningRate
from fedbilevel.mathematics.settings import unmarked
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.terminal import original_streams

_registry = ConstructorRegistry()


def with_overrides(
    experiment: Experiment,
    arguments: Sequence[str],
    program: str,
    *,
    command_options: Iterable[str] = (),
) -> Experiment:
    """Return the experiment with the overrides of the command line.

    Every field is an option, `--algorithm.learning-rate 0.1`; a subcommand selects
    another type of problem, algorithm or engine, `algorithm:FedBiO`.

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
        >>> with_overrides(experiment, ["--rounds", "7"], "fedbilevel run").rounds
        7
    """
    # Options of the file's types need no subcommand before them; other types do.
    ordered = order_arguments(arguments, experiment)
    without_subcommands = (tyro.conf.AvoidSubcommands,)
    errors = io.StringIO()
    try:
        with _registry, original_streams(), redirect_stderr(errors):
            changed: Experiment = tyro.cli(
                _with_types(types_for(arguments, experiment)),
                default=experiment,
                args=list(arguments) if ordered is None else ordered,
                prog=program,
                config=without_subcommands if ordered is None else (),
            )
    except SystemExit as end:
        if not end.code:  # The end of --help.
            raise
        known = {*options_of(chosen_types(arguments, experiment)), *command_options}
        message = option_error(errors.getvalue(), arguments, known, program)
        raise ValueError(message) from None
    return Experiment(
        **{item.name: getattr(changed, item.name) for item in fields(changed)}
    )


def _with_types(types: dict[str, tuple[type, ...]]) -> type[Experiment]:
    """Return a class like `Experiment` whose tables are declared with the given types.

    Tyro derives options from the declared types of fields, and `Experiment` itself
    cannot declare the types of plug-ins.
    """
    declared: list[tuple[str, Any, Any]] = []
    for item in fields(Experiment):
        if item.name in types:
            default = field(default=item.default, default_factory=item.default_factory)
            declared.append((item.name, reduce(or_, types[item.name]), default))
    cls = make_dataclass("Experiment", declared, bases=(Experiment,), frozen=True)
    cls.__doc__ = Experiment.__doc__
    return cls


@_registry.primitive_rule
def _rate(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse a rate as a number, and a schedule or an optimiser as a TOML table."""
    hint = unmarked(info.type)
    optimiser = hint == OptaxOptimiser | None
    if not optimiser and hint not in (Scalar, unmarked(LearningRate), Scalar | None):
        return None

    def parse(texts: list[str]) -> Any:
        if optimiser and texts[0] == "None":
            return None
        try:
            value = tomllib.loads(f"value = {texts[0]}")["value"]
        except tomllib.TOMLDecodeError:
            wanted = "a TOML table" if optimiser else "a number or a TOML table"
            raise ValueError(f"give {wanted}, not {texts[0]!r}.") from None
        return converter().structure(value, hint)

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="TABLE" if optimiser else "NUMBER",
        instance_from_str=parse,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [format_value(value)],
    )


@_registry.struct_rule
def _estimator(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Use the fields of the file's estimator, or of the paper's `NeumannSeries`."""
    if info.type is not Hypergradient:
        return None
    has_default = is_dataclass(info.default)
    cls: Any = type(info.default) if has_default else NeumannSeries
    hints = get_type_hints(cls)
    return StructConstructorSpec(
        instantiate=cls,
        fields=tuple(
            StructFieldSpec(
                item.name,
                hints[item.name],
                getattr(info.default, item.name) if has_default else MISSING,
                helptext=_attribute_help(cls, item.name),
            )
            for item in fields(cls)
        ),
    )


def _attribute_help(cls: type, name: str) -> str | None:
    """Return the text of an attribute in the docstring of a class."""
    docstring = inspect.getdoc(cls) or ""
    match = re.search(rf"^    {name}: (.+(?:\n {{8}}.+)*)", docstring, re.MULTILINE)
    return " ".join(match[1].split()) if match else None
