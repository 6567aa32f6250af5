"""Names and types of the options that override an experiment file."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import TABLES
from fedbilevel.mathematics.hypergradients import Hypergradient, NeumannSeries
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.settings import unmarked


def options_of(types: Iterable[tuple[str, type]]) -> dict[str, Any]:
    """Return the type of the value of every option, by the option.

    Args:
        types: types of tables, each with its table.

    Example:
        >>> from fedbilevel import FedBiO
        >>> options = options_of([("algorithm", FedBiO)])
        >>> options["--rounds"], options["--no-weight-by-size"]
        (<class 'int'>, <class 'bool'>)
    """
    hints: dict[str, Any] = {}
    for field in fields(Experiment):
        if field.name not in TABLES:
            hints |= _options(field.name, get_type_hints(Experiment)[field.name])
    for table, cls in types:
        hints |= _options(table, cls)
    return {
        flag: hint
        for name, hint in hints.items()
        for flag in (_flags(name) if hint is bool else (f"--{name}",))
    }


def _options(name: str, hint: Any) -> dict[str, Any]:
    """Return the type of every option of a field, by its name."""
    hint = NeumannSeries if hint is Hypergradient else unmarked(hint)
    parts = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
    # An optimiser is one option, whose value is a table.
    if not parts or OptaxOptimiser in parts:
        return {name.replace("_", "-"): hint}
    return {
        option: option_hint
        for part in parts
        for field, inner in _hints(part)
        for option, option_hint in _options(f"{name}.{field}", inner).items()
    }


def _hints(cls: Any) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(cls)
    yield from ((field.name, hints[field.name]) for field in fields(cls) if field.init)


def _flags(name: str) -> tuple[str, str]:
    table, dot, field = name.rpartition(".")
    return f"--{name}", f"--{table}{dot}no-{field}"
