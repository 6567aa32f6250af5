"""An experiment written as a file that reads as the same experiment."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedbilevel.experiments.files.convert import ESTIMATORS
from fedbilevel.experiments.schema import Auto, Experiment
from fedbilevel.experiments.schema.registry import AUTO, TABLES, name_of
from fedbilevel.mathematics.optax_optimiser import OptaxOptimiser
from fedbilevel.mathematics.optax_schedule import OptaxSchedule


def write_experiment(experiment: Experiment, file: Path) -> None:
    """Write an experiment file.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.experiments.files.read import read_experiment
        >>> asked = Experiment(FedBiO(0.1), rounds=7)
        >>> file = Path(tempfile.mkdtemp()) / "first.toml"
        >>> write_experiment(asked, file)
        >>> read_experiment(file) == asked
        True
    """
    file.write_text(text_of(experiment), encoding="utf-8")


def text_of(experiment: Experiment) -> str:
    """Return an experiment as the text of a file.

    Example:
        >>> from fedbilevel import FedBiO
        >>> text_of(Experiment(FedBiO(0.1), rounds=7)).splitlines()[0]
        'rounds = 7'
    """
    return tomli_w.dumps(_plain(experiment))


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return what an experiment's file says, by dotted name.

    What it says of tracking is left aside: it changes nothing of the run, and addresses
    can hold passwords.

    Example:
        >>> from fedbilevel import FedBiO
        >>> settings_of(Experiment(FedBiO(0.1)))["algorithm.learning_rate"]
        0.1
    """
    flat = _flat(_plain(experiment))
    return {name: one for name, one in flat if not name.startswith("tracking.")}


def _flat(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", one) for inner, one in _flat(value))
        else:
            yield name, value


def in_line(value: Any) -> str:
    """Return a value as it stands after the equals sign of a file.

    Example:
        >>> from fedbilevel import CubeRootDecay
        >>> in_line(CubeRootDecay(0.5))
        '{scale = 0.5, plateau = 2.0}'
    """
    value = _plain(value)
    if isinstance(value, dict):
        pairs = (f"{name} = {in_line(one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_line, value))}]"
    return json.dumps(value) if isinstance(value, bool | str) else str(value)


def _plain(value: Any, declared: Any = None) -> Any:
    if isinstance(value, OptaxSchedule):
        return {"schedule": value.name, **value.table}
    if isinstance(value, OptaxOptimiser):
        return value.table
    if value == Auto():
        return AUTO
    if isinstance(value, Experiment):
        return _tables(value)
    if is_dataclass(value) and not isinstance(value, type):
        # Where nothing else can stand, a file gives no name.
        name = type(value).__name__
        has_name = name in ESTIMATORS and type(value) is not declared
        named = {"name": name} if has_name else {}
        return named | _held(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _tables(experiment: Experiment) -> dict[str, Any]:
    held = _held(experiment)
    for table in TABLES:
        value = getattr(experiment, table)
        if value != Auto():
            held[table] = {"name": name_of(table, type(value)), **held[table]}
    if experiment.brings_data:
        held = {k: v for k, v in held.items() if k not in ("data", "partition")}
    return held


def _held(value: Any) -> dict[str, Any]:
    held = {
        one.name: _plain(getattr(value, one.name), one.type) for one in fields(value)
    }
    # What is none is what a file leaves out.
    return {k: v for k, v in held.items() if v is not None}
