"""Subcommands that select the type of the algorithm, the problem or the engine."""

import re
from collections.abc import Sequence

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import TABLES, find_type, list_types
from fedbilevel.nearest import nearest

_SUBCOMMAND = re.compile(rf"({'|'.join(TABLES)}):(.+)")


def subcommand_of(table: str, cls: type) -> str:
    """Return the subcommand that selects a type.

    Example:
        >>> from fedbilevel import FedBiOAcc
        >>> subcommand_of("algorithm", FedBiOAcc)
        'algorithm:fed-bi-o-acc'
    """
    hyphenated = re.sub(r"(.)([A-Z][a-z]+)", r"\1-\2", cls.__name__)
    hyphenated = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", hyphenated)
    return f"{table}:{hyphenated.lower()}"


def order_arguments(
    arguments: Sequence[str], experiment: Experiment
) -> list[str] | None:
    """Return arguments in tyro's order; None if they have no subcommand.

    Tyro's order is: options of other tables, then each table's subcommand and options.

    Raises:
        ValueError: if a type is unknown, or selected by an option.

    Example:
        >>> from fedbilevel import FedBiO
        >>> arguments = "algorithm:SimFBO --algorithm.learning-rate 1 --seed 3".split()
        >>> order_arguments(arguments, Experiment(FedBiO(0.1)))
        ['--seed', '3', 'algorithm:sim-fbo', '--algorithm.learning-rate', '1',
         'problem:regularisation', 'engine:simulation']
    """
    subcommands: dict[str, str] = {}
    options: dict[str, list[str]] = {"": [], **{table: [] for table in TABLES}}
    latest = options[""]
    for argument in arguments:
        match = _SUBCOMMAND.fullmatch(argument)
        if match:
            table, name = match.groups()
            subcommands[table] = subcommand_of(table, _find_type(table, name))
            continue
        if argument.startswith("--"):
            table, _, key = argument[2:].partition("=")[0].partition(".")
            _refuse_name(argument, table, key)
            latest = options[table if table in TABLES else ""]
        latest.append(argument)
    if not subcommands:
        return None
    ordered = options[""]
    for table in TABLES:
        default = subcommand_of(table, type(getattr(experiment, table)))
        ordered += [subcommands.get(table, default), *options[table]]
    return ordered


def _find_type(table: str, name: str) -> type:
    def normalise(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    known = {normalise(cls.__name__): cls for cls in list_types(table).values()}
    if normalise(name) in known:
        return known[normalise(name)]
    if ":" in name:
        return find_type(table, name)
    cure = nearest(name, [cls.__name__ for cls in known.values()])
    raise ValueError(f"{table}:{name} selects an unknown type; {cure}")


def types_for(
    arguments: Sequence[str], experiment: Experiment
) -> dict[str, tuple[type, ...]]:
    """Return the types of each table: the listed ones, and those in use.

    Example:
        >>> from fedbilevel import FedBiO
        >>> len(types_for([], Experiment(FedBiO(0.1)))["engine"])
        3
    """
    matches = [match for text in arguments if (match := _SUBCOMMAND.fullmatch(text))]
    return {
        table: tuple(
            dict.fromkeys(
                [
                    *list_types(table).values(),
                    type(getattr(experiment, table)),
                    *(_find_type(table, m[2]) for m in matches if m[1] == table),
                ]
            )
        )
        for table in TABLES
    }


def chosen_types(
    arguments: Sequence[str], experiment: Experiment
) -> list[tuple[str, type]]:
    """Return the type of each table after the arguments, with the table.

    Example:
        >>> from fedbilevel import FedBiO
        >>> chosen_types(["engine:Sharded"], Experiment(FedBiO(0.1)))[0]
        ('algorithm', <class 'fedbilevel.algorithms.fedbio.FedBiO'>)
    """
    chosen = {table: type(getattr(experiment, table)) for table in TABLES}
    for argument in arguments:
        if match := _SUBCOMMAND.fullmatch(argument):
            chosen[match[1]] = _find_type(match[1], match[2])
    return list(chosen.items())


def _refuse_name(argument: str, table: str, key: str) -> None:
    if key == "name" and table in TABLES:
        raise ValueError(
            f"{argument} is not an option; select the type by a subcommand, such as "
            f"{subcommand_of(table, list(list_types(table).values())[-1])}."
        )
