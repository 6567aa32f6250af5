"""Real processes for tests."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.compiling import for_devices


def start_processes(count: int, module: list[str]) -> list[subprocess.Popen[str]]:
    """Start a module in a number of processes, connected if there are several."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for process in range(count):
        place = {"PORT": str(port), "PROCESSES": str(count), "PROCESS": str(process)}
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", *module],
                env={
                    **os.environ,
                    "XLA_FLAGS": for_devices(2),
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    **(place if count > 1 else {}),
                },
                cwd=Path(__file__).parent.parent.parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return running
