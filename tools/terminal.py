"""Run a command in a pseudo-terminal and read its output."""

import os
import pty
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def run_in_terminal(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    columns: int,
) -> Iterator[bytes]:
    """Run a command in a pseudo-terminal, and yield its output in pieces.

    Raises:
        CalledProcessError: if the command fails.
    """
    leader, follower = pty.openpty()
    size = {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    process = subprocess.Popen(
        command,
        cwd=directory,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**environment, **size},
    )
    os.close(follower)
    while True:
        try:
            yield os.read(leader, 4096)
        except OSError:  # Linux raises it when the other side is closed
            break
    os.close(leader)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)
