"""Kinds of algorithms, problems and engines, as words of the command line."""

import re
from collections.abc import Sequence

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import TABLES, find_type, list_types
from fedbilevel.nearest import nearest

_WORD = re.compile(rf"({'|'.join(TABLES)}):(.+)")


def word_of(table: str, kind: type) -> str:
    """Return how a kind is named.

    Example:
        >>> from fedbilevel import FedBiOAcc
        >>> word_of("algorithm", FedBiOAcc)
        'algorithm:fed-bi-o-acc'
    """
    apart = re.sub(r"(.)([A-Z][a-z]+)", r"\1-\2", kind.__name__)
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", apart)
    return f"{table}:{apart.lower()}"


def in_order(arguments: Sequence[str], experiment: Experiment) -> list[str] | None:
    """Return arguments in the order that tyro wants; none if they name no kind.

    That is: options of everything else, then for each table its kind and its options.

    Raises:
        ValueError: if a kind is not known, or given as an option.

    Example:
        >>> from fedbilevel import FedBiO
        >>> typed = "algorithm:SimFBO --algorithm.learning-rate 1 --seed 3"
        >>> in_order(typed.split(), Experiment(FedBiO(0.1)))
        ['--seed', '3', 'algorithm:sim-fbo', '--algorithm.learning-rate', '1',
         'problem:regularisation', 'engine:simulation']
    """
    named: dict[str, str] = {}
    options: dict[str, list[str]] = {"": [], **{table: [] for table in TABLES}}
    latest = options[""]
    for argument in arguments:
        kind = _WORD.fullmatch(argument)
        if kind:
            named[kind[1]] = word_of(kind[1], _known(kind[1], kind[2]))
            continue
        if argument.startswith("--"):
            table, _, key = argument[2:].partition("=")[0].partition(".")
            _refuse_name(argument, table, key)
            latest = options[table if table in TABLES else ""]
        latest.append(argument)
    if not named:
        return None
    ordered = options[""]
    for table in TABLES:
        same = word_of(table, type(getattr(experiment, table)))
        ordered += [named.get(table, same), *options[table]]
    return ordered


def _known(table: str, given: str) -> type:
    def squeezed(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    known = {squeezed(kind.__name__): kind for kind in list_types(table).values()}
    if squeezed(given) in known:
        return known[squeezed(given)]
    if ":" in given:
        return find_type(table, given)
    cure = nearest(given, [kind.__name__ for kind in known.values()])
    raise ValueError(f"{table}:{given} is not known; {cure}")


def kinds_for(
    arguments: Sequence[str], experiment: Experiment
) -> dict[str, tuple[type, ...]]:
    """Return the classes that each table may be: all known ones, and those in use.

    Example:
        >>> from fedbilevel import FedBiO
        >>> len(kinds_for([], Experiment(FedBiO(0.1)))["engine"])
        3
    """
    named = [match for one in arguments if (match := _WORD.fullmatch(one))]
    return {
        table: tuple(
            dict.fromkeys(
                [
                    *list_types(table).values(),
                    type(getattr(experiment, table)),
                    *(_known(table, one[2]) for one in named if one[1] == table),
                ]
            )
        )
        for table in TABLES
    }


def _refuse_name(argument: str, table: str, key: str) -> None:
    if key == "name" and table in TABLES:
        raise ValueError(
            f"{argument} is no option: a kind is a word of its own, such as "
            f"{word_of(table, list(list_types(table).values())[-1])}."
        )
