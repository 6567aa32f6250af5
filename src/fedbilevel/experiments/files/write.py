"""Write experiment files, from which the same experiment is read again."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedbilevel.experiments.files.convert import ESTIMATORS
from fedbilevel.experiments.files.value_text import value_text
from fedbilevel.experiments.schema import Auto, Experiment
from fedbilevel.experiments.schema.registry import AUTO, TABLES, name_of
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.optax_schedule import OptaxSchedule
from fedbilevel.mathematics.settings import unmarked


def write_experiment(experiment: Experiment, file: Path) -> None:
    """Write an experiment file.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.experiments.files.read import read_experiment
        >>> experiment = Experiment(FedBiO(0.1), rounds=7)
        >>> file = Path(tempfile.mkdtemp()) / "first.toml"
        >>> write_experiment(experiment, file)
        >>> read_experiment(file) == experiment
        True
    """
    file.write_text(text_of(experiment), encoding="utf-8")


def text_of(experiment: Experiment) -> str:
    """Return the text of an experiment file.

    Example:
        >>> from fedbilevel import FedBiO
        >>> text_of(Experiment(FedBiO(0.1), rounds=7)).splitlines()[1]
        'rounds = 7'
    """
    return tomli_w.dumps(plain(experiment))


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return the settings of an experiment by dotted name, without tracking.

    Tracking does not change the run, and its addresses can have passwords.

    Example:
        >>> from fedbilevel import FedBiO
        >>> settings_of(Experiment(FedBiO(0.1)))["algorithm.learning_rate"]
        0.1
    """
    flat = _flat(plain(experiment))
    return {key: value for key, value in flat if not key.startswith("tracking.")}


def _flat(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in _flat(value))
        else:
            yield name, value


def format_value(value: Any) -> str:
    """Return the TOML text of a value, on one line.

    Example:
        >>> from fedbilevel import CubeRootDecay
        >>> format_value(CubeRootDecay(0.5))
        '{scale = 0.5, plateau = 2.0}'
    """
    return value_text(plain(value))


def plain(value: Any, declared: Any = None) -> Any:
    """Return a setting, a table or an experiment as values of TOML.

    Example:
        >>> plain((Path("a"), 3))
        ['a', 3]
    """
    if isinstance(value, OptaxSchedule):
        return {"schedule": value.name, **value.table}
    if isinstance(value, OptaxOptimiser):
        return value.table
    if value == Auto():
        return AUTO
    if isinstance(value, Experiment):
        return _tables(value)
    if is_dataclass(value) and not isinstance(value, type):
        # A table that is declared with a single type has no name in the file.
        name = type(value).__name__
        has_name = name in ESTIMATORS and type(value) is not declared
        return ({"name": name} if has_name else {}) | _fields(value)
    if isinstance(value, Path):
        return str(value)
    return list(map(plain, value)) if isinstance(value, tuple) else value


def _tables(experiment: Experiment) -> dict[str, Any]:
    tables = _fields(experiment)
    for table in TABLES:
        value = getattr(experiment, table)
        if value != Auto():
            tables[table] = {"name": name_of(table, type(value)), **tables[table]}
    if experiment.brings_data:
        tables = {k: v for k, v in tables.items() if k not in ("data", "partition")}
    return tables


def _fields(value: Any) -> dict[str, Any]:
    values = {
        item.name: plain(getattr(value, item.name), unmarked(item.type))
        for item in fields(value)
    }
    # TOML has no null: a key without a value is omitted.
    return {k: v for k, v in values.items() if v is not None}
