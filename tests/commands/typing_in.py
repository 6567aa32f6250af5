"""Run commands in a directory: in this process, or in a terminal.

An interpreter that imports JAX and compiles a run takes 5 to 10 s of processor time,
and tests in one process share compiled programs. Only tests of signals, pipes and
terminals start a process.
"""

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import jax

from fedbilevel.__main__ import main
from tests.compiling import QUICKLY
from tools.terminal import run_in_terminal

# Fast compilation, for one device as on most machines.
ENVIRONMENT = {
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "XLA_FLAGS": QUICKLY,
}

QUICK = """
rounds = 12
[data]
train_size = 64
validation_size = 40
[partition]
devices = 4
[algorithm]
name = "FedBiO"
learning_rate = 0.1
batch_size = 4
[evaluation]
every = 4
[checkpoints]
every = 5
"""


def fedbilevel(
    directory: Path, arguments: str, code: int | tuple[int, ...] = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process; fail if it ends with another code.

    Args:
        directory: working directory of the command.
        arguments: arguments of the command, separated by spaces.
        code: expected exit code, or all that chance may give.
    """
    output, errors = io.StringIO(), io.StringIO()
    with (
        chdir(directory),
        redirect_stdout(output),
        redirect_stderr(errors),
        as_for_users(),
    ):
        ended = main(arguments.split())
    expected = code if isinstance(code, tuple) else (code,)
    assert ended in expected, errors.getvalue()
    return subprocess.CompletedProcess(
        arguments, ended, output.getvalue(), errors.getvalue()
    )


@contextmanager
def as_for_users() -> Iterator[None]:
    """Use the JAX settings of users, and restore logging at the end."""
    logger = logging.getLogger("fedbilevel")
    handlers, propagate = list(logger.handlers), logger.propagate
    try:
        with (
            jax.enable_x64(False),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


def in_terminal(directory: Path, arguments: str) -> str:
    """Run a command in a terminal; return its output."""
    command = [sys.executable, "-m", "fedbilevel", *arguments.split()]
    output = run_in_terminal(command, directory, ENVIRONMENT, columns=100)
    return b"".join(output).decode()
