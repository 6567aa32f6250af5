"""The command line as a person uses it: a process in a folder."""

import os
import subprocess
import sys
from pathlib import Path

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
training = 64
validation = 40
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


def fedbilevel(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    """Type a command; fail if it does."""
    done = subprocess.run(
        [sys.executable, "-m", "fedbilevel", *words.split()],
        capture_output=True,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return done


def in_terminal(folder: Path, words: str) -> str:
    """Type a command in a terminal; return all that it showed."""
    command = [sys.executable, "-m", "fedbilevel", *words.split()]
    return b"".join(shown(command, folder, ENVIRONMENT, columns=100)).decode()
