"""The command line as a person uses it, in a directory: in this process, or in a terminal.

An interpreter that imports JAX and compiles a run takes 5 to 10 s of a processor, and
tests of one process share what they compile. Only what needs a process (signals, pipes,
terminals) is typed into one.
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
from tools.terminal import shown

# Compiled quickly, for one device as on most machines.
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
    directory: Path, words: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Carry out a command in this process; fail if it ends with another code."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        chdir(directory),
        redirect_stdout(output),
        redirect_stderr(errors),
        as_for_users(),
    ):
        ended = main(words.split())
    assert ended == code, errors.getvalue()
    return subprocess.CompletedProcess(
        words, ended, output.getvalue(), errors.getvalue()
    )


@contextmanager
def as_for_users() -> Iterator[None]:
    """Compute as outside of tests, and leave logging as it was."""
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


def in_terminal(directory: Path, words: str) -> str:
    """Type a command in a terminal; return all that it showed."""
    command = [sys.executable, "-m", "fedbilevel", *words.split()]
    return b"".join(shown(command, directory, ENVIRONMENT, columns=100)).decode()
