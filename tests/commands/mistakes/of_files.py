"""Mistakes in the choice of an experiment file, and in its syntax."""

import os

from tests.commands.mistakes.mistake import ALGORITHM, OWN, Mistake, of_file


def make_pipe() -> None:
    os.mkfifo("a.toml")


def make_large_file() -> None:
    # The file is sparse: it needs no space on the disk.
    with open("a.toml", "wb") as file:
        file.truncate(10**9)


MISTAKES = (
    Mistake(
        "no such file",
        "run missing.toml",
        {},
        "cannot be read: No such file or directory",
        "missing.toml",
        "give the path of an experiment file, or write one with: fedbilevel new NAME.",
    ),
    Mistake(
        "a directory",
        "run .",
        {},
        "is a directory, not a file",
        "fedbilevel run: .",
        "give the path of an experiment file, or write one",
    ),
    Mistake("an empty path", "run ''", {}, "is empty", "FILE", "Give a path."),
    Mistake(
        "a pipe",
        "run a.toml",
        {},
        "is a pipe, not a file",
        "a.toml",
        "give the path of an experiment file, or write one",
        make_pipe,
    ),
    Mistake(
        "a device",
        "run /dev/zero",
        {},
        "is a device, not a file",
        "/dev/zero",
        "give the path of an experiment file, or write one",
    ),
    Mistake(
        "a file of 1 GB",
        "run a.toml",
        {},
        "has 1000000000 bytes, more than 1000000",
        "a.toml",
        "give the path of an experiment file, or write one",
        make_large_file,
    ),
    Mistake(
        "a Python file to run",
        "run own.py",
        {"own.py": "import jax"},
        "is a Python file, not an experiment file",
        "own.py",
        "write one with: fedbilevel new NAME",
    ),
    Mistake(
        "the Python file of an experiment",
        "run own.py",
        {"own.py": "import jax", "own.toml": OWN},
        "is a Python file, not an experiment file",
        "own.py",
        "give the experiment file own.toml.",
    ),
    of_file(
        "not valid TOML",
        "rounds = = 3",
        "a.toml is not valid TOML: Invalid value",
        "at line 1, column 10",
        "correct the syntax there.",
    ),
    of_file(
        "no algorithm",
        "rounds = 3",
        "is missing",
        "a.toml: algorithm",
        'add: algorithm = "auto", or a table [algorithm]',
    ),
    of_file(
        "an unknown key",
        "round = 3\n" + ALGORITHM,
        "unknown key round;",
        "a.toml, line 1",
        "did you mean rounds?",
    ),
    of_file(
        "an unknown table",
        "[algoritm]\nname = 'x'",
        "unknown key algoritm;",
        "a.toml, line 1",
        "did you mean algorithm?",
    ),
)
