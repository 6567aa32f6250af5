"""What the command line changes of an experiment file."""

import tomllib
from collections.abc import Sequence
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
from fedbilevel.experiments.files.type_options import in_order, kinds_for
from fedbilevel.experiments.files.write import in_line
from fedbilevel.experiments.schema import Experiment
from fedbilevel.mathematics.hypergradients import Hypergradient, NeumannSeries
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.schedules import LearningRate
from fedbilevel.mathematics.settings import unmarked
from fedbilevel.mathematics.tree import Scalar
from fedbilevel.terminal import original_streams

_registry = ConstructorRegistry()


def with_overrides(
    experiment: Experiment, arguments: Sequence[str], program: str
) -> Experiment:
    """Return the experiment with what the command line says instead.

    Every field is an option, `--algorithm.learning-rate 0.1`; another kind of problem,
    algorithm or engine is a word of its own, `algorithm:FedBiO`.

    Args:
        experiment: as its file has it.
        arguments: of the command line.
        program: how the command was called, for its help.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1))
        >>> with_overrides(asked, ["--rounds", "7"], "fedbilevel run").rounds
        7
    """
    # Options of what the file names need no word before them; other kinds do.
    ordered = in_order(arguments, experiment)
    without_words = (tyro.conf.AvoidSubcommands,)
    with _registry, original_streams():
        changed: Experiment = tyro.cli(
            _with_kinds(kinds_for(arguments, experiment)),
            default=experiment,
            args=list(arguments) if ordered is None else ordered,
            prog=program,
            config=without_words if ordered is None else (),
        )
    return Experiment(
        **{one.name: getattr(changed, one.name) for one in fields(changed)}
    )


def _with_kinds(kinds: dict[str, tuple[type, ...]]) -> type[Experiment]:
    """Return the class of an experiment, its tables declared as what they may be.

    Tyro makes options of what a field is declared as, and plug-ins are not known where
    `Experiment` is written.
    """
    declared: list[tuple[str, Any, Any]] = []
    for one in fields(Experiment):
        if one.name in kinds:
            default = field(default=one.default, default_factory=one.default_factory)
            declared.append((one.name, reduce(or_, kinds[one.name]), default))
    made = make_dataclass("Experiment", declared, bases=(Experiment,), frozen=True)
    made.__doc__ = Experiment.__doc__
    return made


@_registry.primitive_rule
def _rate(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A rate is a number; a schedule or an optimiser is a table."""
    kind = unmarked(info.type)
    optimiser = kind == OptaxOptimiser | None
    if not optimiser and kind not in (Scalar, unmarked(LearningRate), Scalar | None):
        return None

    def parse(words: list[str]) -> Any:
        if optimiser and words[0] == "None":
            return None
        value = tomllib.loads(f"value = {words[0]}")["value"]
        return converter().structure(value, kind)

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="TABLE" if optimiser else "NUMBER",
        instance_from_str=parse,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [in_line(value)],
    )


@_registry.struct_rule
def _estimator(info: StructTypeInfo) -> StructConstructorSpec | None:
    """An estimator has the fields of the one that the file names, or the paper's."""
    if info.type is not Hypergradient:
        return None
    named = is_dataclass(info.default)
    kind: Any = type(info.default) if named else NeumannSeries
    hints = get_type_hints(kind)
    return StructConstructorSpec(
        instantiate=kind,
        fields=tuple(
            StructFieldSpec(
                one.name,
                hints[one.name],
                getattr(info.default, one.name) if named else MISSING,
            )
            for one in fields(kind)
        ),
    )
