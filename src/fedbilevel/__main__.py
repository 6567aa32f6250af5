"""The command line: one module for each command, imported on first use."""

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
from fedbilevel.usage import UsageError, with_plain_errors

COMMANDS = {
    "run": "run an experiment file",
    "resume": "resume a stopped or crashed run",
    "federate": "run an experiment file across sites, with NVIDIA FLARE",
    "compare": "compare runs in a table and in curves",
    "tune": "tune the learning rates of an experiment file",
    "plan": "derive settings for K devices and an accuracy from a run",
    "noise": "compute the noise of differential privacy for an ε",
    "diagnose": "measure how heterogeneous the devices are",
    "plot": "plot a run and write its HTML report",
    "new": "create a custom problem: losses, tests, experiment file",
    "doctor": "check the installation, the hardware and the data sets",
    "completion": "print a completion script for bash, zsh or fish",
}
"""One line of help for each command, a module of `fedbilevel.commands`."""

EXTRA = (
    "cattrs",
    "filelock",
    "matplotlib",
    "optuna",
    "rich",
    "shtab",
    "tomli_w",
)
"""Modules that only the command line needs."""


SYSTEM = (
    OSError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Exceptions of the operating system; their other subclasses have a full message."""


CURES = {
    errno.EACCES: "Change its permissions, or give another file or directory.",
    errno.EDQUOT: "Free some space within your disk quota.",
    errno.EFBIG: "Raise the limit for file sizes (ulimit -f).",
    errno.EIO: "Check the disk.",
    errno.EISDIR: "Move or rename that directory, or give another file.",
    errno.EMFILE: "Raise the limit for open files (ulimit -n).",
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ENOSPC: "Free some space on that disk.",
    errno.EPERM: "Change its permissions, or give another file or directory.",
    errno.EROFS: "Give a directory on a writable disk.",
}
"""The cure for an error of the operating system, by error number."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code.

    A user's mistake ends with one message and code 2, a run whose loss increased with
    code 3. With `FEDBILEVEL_DEBUG=1` the traceback is printed.

    Example:
        >>> main(["run", "missing.toml"])
        2
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="fedbilevel",
        description="Federated bilevel optimization: two losses in, a tuned model out.",
        epilog="fedbilevel COMMAND --help shows the options of a command.",
    )
    parser.add_argument(
        "--version", action="version", version=f"fedbilevel {fedbilevel.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, add_help=False)
        command.set_defaults(command=name)
    try:
        command_name: str = with_plain_errors(parser).parse_args(arguments[:1]).command
    except UsageError as error:
        print(printable(f"fedbilevel: {error}"), file=sys.stderr)
        return 2
    try:
        with printable_streams():
            module = import_module(f"fedbilevel.commands.{command_name}")
            _show_warnings()
            code: int = module.main(arguments[1:])
            # Flush inside the try statement, so that a full disk is reported.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter must not flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        _end_interrupted(command_name)
    except Exception as error:
        if _came_of_interruption(error):
            _end_interrupted(command_name)
        if os.environ.get("FEDBILEVEL_DEBUG") or not _is_user_error(error):
            raise
        message = f"fedbilevel {command_name}: {_message(error)}"
        print(printable(message), file=sys.stderr)
        return 3 if type(error).__name__ == "NoUploadsError" else 2
    return code


def _end_interrupted(command: str) -> NoReturn:
    # Another Ctrl-C would only print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"fedbilevel {command}: interrupted", file=sys.stderr, flush=True)
    # JAX may be computing in other threads; do not wait for them.
    os._exit(130)


def _came_of_interruption(error: BaseException | None) -> bool:
    """Return whether an error was raised while an interruption was handled."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _is_user_error(error: Exception) -> bool:
    """Return whether the message of an error suffices, without a traceback."""
    types = ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError
    # JAX raises the first if memory is short, the debug engine the second, a
    # federation the third. They are compared by name, so that JAX is not imported.
    names = "JaxRuntimeError", "DeviceError", "FederationError"
    return isinstance(error, types) or type(error).__name__ in names


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRA:
        return (
            f"The Python package {error.name} is not installed. Run: pip install "
            "'fedbilevel[commands]'"
        )
    if isinstance(error, MemoryError):
        return (
            f"Out of memory{f': {error}' if str(error) else ''}. Reduce batch_size, "
            "the number of devices or the model."
        )
    if isinstance(error, OSError) and type(error) in SYSTEM and error.errno:
        path = error.filename or "A file or the output of this command"
        cure = CURES.get(error.errno, "Give another file or directory.")
        return f"{path} cannot be used: {error.strerror}. {cure}"
    text = str(error)
    # Messages of the library advise DebugSimulation(); those that list all engines, or
    # name the option already, need no hint.
    known = "engine:DebugSimulation", "choose one of DebugSimulation"
    if "DebugSimulation" in text and not any(part in text for part in known):
        return f"{text} (On the command line: engine:DebugSimulation.)"
    return text


def _show_warnings() -> None:
    """Print the library's warnings once, as plain lines on standard error."""
    logger = logging.getLogger("fedbilevel")
    logger.propagate = False
    if not logger.handlers and logging.lastResort is not None:
        logger.addHandler(logging.lastResort)


if __name__ == "__main__":
    sys.exit(main())
