"""A mistake on the command line, and the three parts of its message."""

from collections.abc import Callable
from typing import NamedTuple

ALGORITHM = '[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n'
SMALL = "[data]\ntrain_size = 60\nvalidation_size = 40\n"
OWN = '[problem]\nname = "CustomProblem"\nfile = "own.py"\n' + ALGORITHM
DONE = "rounds = 4\n" + SMALL + ALGORITHM + "[checkpoints]\nevery = 1\n"


class Mistake(NamedTuple):
    """A command line with its files, and the expected parts of its message.

    Attributes:
        name: name of the test.
        arguments: arguments of `fedbilevel`.
        files: contents of the files of the working directory, by name. `DONE` as
            done.toml stands for its finished run in runs/done, too.
        cause: what was wrong, with the value if there is one.
        place: where: a file, line, key, option, device, or a function or variable of
            the problem.
        cure: what to do.
        before: function that prepares the working directory.
    """

    name: str
    arguments: str
    files: dict[str, str]
    cause: str
    place: str
    cure: str
    before: Callable[[], None] = lambda: None


def of_file(name: str, text: str, cause: str, place: str, cure: str) -> Mistake:
    return Mistake(name, "run a.toml", {"a.toml": text}, cause, place, cure)


def typed(
    name: str,
    arguments: str,
    cause: str,
    place: str,
    cure: str,
    text: str = ALGORITHM,
) -> Mistake:
    return Mistake(name, arguments, {"a.toml": text}, cause, place, cure)
