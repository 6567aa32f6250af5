"""The command line: one module a command, imported when it is asked for."""

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import fedbilevel
from fedbilevel.terminal import printable, printable_streams

COMMANDS = {
    "run": "run an experiment file",
    "resume": "go on with a run that was stopped or has crashed",
    "federate": "run an experiment file across sites that keep their data",
    "compare": "several runs in a table and in curves",
    "tune": "search the settings of an experiment file",
    "plan": "the paper's schedules for K devices and an accuracy, from a run",
    "diagnose": "are the devices of an experiment homogeneous enough?",
    "plot": "pictures of a run and of what it has learnt, and a page with all of it",
    "new": "scaffold a problem of your own: two losses, a test, an experiment file",
    "doctor": "what is installed, what it runs on, which data can be found",
    "completion": "print a script that completes commands in bash, zsh or fish",
}
"""What each command is for; each is a module of `fedbilevel.commands`."""

EXTRA = (
    "cattrs",
    "filelock",
    "matplotlib",
    "optuna",
    "rich",
    "shtab",
    "tomli_w",
    "tyro",
)
"""Modules that the command line needs and the library does not."""


SYSTEM = (
    OSError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Errors of the system, which name a file; others of their kind have words."""


CURES = {
    errno.EACCES: "get the right to it, or give another file or folder",
    errno.EDQUOT: "free some of the room that is yours",
    errno.EFBIG: "raise the limit for the size of files",
    errno.EIO: "look after the disk",
    errno.EISDIR: "move that folder out of the way, or give another file",
    errno.EMFILE: "raise the limit for open files (ulimit -n)",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOSPC: "free some room on that disk",
    errno.EPERM: "get the right to it, or give another file or folder",
    errno.EROFS: "give a folder on a disk that can be written",
}
"""What to do about errors of the system, by their number."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command; return the exit code.

    Mistakes of the person at the keyboard end with one message and code 2, a run that
    has got worse with code 3.
    `FEDBILEVEL_DEBUG=1` shows where they arose.

    Example:
        >>> main(["run", "missing.toml"])
        2
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="fedbilevel",
        description="Federated bilevel optimization: two losses in, a tuned model out.",
        epilog="Each command has a --help of its own.",
    )
    parser.add_argument(
        "--version", action="version", version=f"fedbilevel {fedbilevel.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, add_help=False)
        command.set_defaults(command=name)
    asked = parser.parse_args(arguments[:1])
    try:
        with printable_streams():
            module = import_module(f"fedbilevel.commands.{asked.command}")
            _say_warnings()
            code: int = module.main(arguments[1:])
            # Here, where it can be told what went wrong.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read along has closed the book; what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        _end_interrupted(asked.command)
    except Exception as error:
        if _came_of_interruption(error):
            _end_interrupted(asked.command)
        if os.environ.get("FEDBILEVEL_DEBUG") or not _is_answer(error):
            raise
        words = f"fedbilevel {asked.command}: {_words(error)}"
        print(printable(words), file=sys.stderr)
        return 3 if type(error).__name__ == "NoUploadsError" else 2
    return code


def _end_interrupted(command: str) -> NoReturn:
    # Another Ctrl-C has nothing left to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"fedbilevel {command}: interrupted", file=sys.stderr, flush=True)
    # JAX may be in the middle of anything; nothing of it is waited for.
    os._exit(130)


def _came_of_interruption(error: BaseException | None) -> bool:
    """Whether an error arose while an interruption was being cleaned up after."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _is_answer(error: Exception) -> bool:
    """Whether an error is to be read by the person at the keyboard."""
    kinds = ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError
    # JAX raises the first where memory is short, the debug engine the second, a
    # federation the third.
    named = "JaxRuntimeError", "DeviceError", "FederationError"
    return isinstance(error, kinds) or type(error).__name__ in named


def _words(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRA:
        return f"{error.name} is missing; run: pip install 'fedbilevel[commands]'"
    if isinstance(error, MemoryError):
        return (
            f"this asks for more memory than there is: {error or 'no more was said'}."
        )
    if isinstance(error, OSError) and type(error) in SYSTEM and error.errno:
        what = error.filename or "a file or the output of this command"
        cure = CURES.get(error.errno, "give another file or folder")
        return f"{what} cannot be used: {error.strerror}; {cure}."
    if "DebugSimulation" in str(error):
        return f"{error} (Here: engine:DebugSimulation.)"
    return str(error)


def _say_warnings() -> None:
    """Let the library's warnings be read, once and without the trimmings of others."""
    logger = logging.getLogger("fedbilevel")
    logger.propagate = False
    if not logger.handlers and logging.lastResort is not None:
        logger.addHandler(logging.lastResort)


if __name__ == "__main__":
    sys.exit(main())
