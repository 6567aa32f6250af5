"""Computations of workers in tests: `make` functions that a child can import."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Answer = Callable[[bytes], bytes | str]


def echo() -> Answer:
    return bytes


def pid_and_calls(notes: Path) -> Answer:
    """Return the process id, and the number of calls of `make` so far."""
    with notes.open("a") as file:
        file.write("called\n")
    return lambda _: f"{os.getpid()} {len(notes.read_text().split())}".encode()


def orders(notes: Path) -> Answer:
    """Return a function that sleeps, raises, ends or forks, as its message orders."""

    def obey(message: bytes) -> bytes | str:
        token, _, argument = message.decode().partition(" ")
        with notes.open("a") as file:
            file.write(f"{message.decode()}\n")
        if token == "sleep":
            time.sleep(float(argument))
        elif token == "wait":
            while not Path(argument).exists():
                time.sleep(0.01)
        elif token == "signal":
            os.kill(os.getpid(), int(argument))
        elif token == "raise":
            raise ValueError(argument)
        elif token == "exit":
            sys.exit(int(argument))
        elif token == "end":
            os._exit(int(argument))
        elif token == "answer":
            return bytes(int(argument))
        elif token == "say":
            return argument
        elif token == "number":
            return int(argument)  # type: ignore[return-value]
        elif token == "fork" and not (pid := os.fork()):
            time.sleep(float(argument))
            os._exit(0)
        elif token == "fork":
            notes.write_text(f"{pid}")
            os.kill(os.getpid(), signal.SIGKILL)
        elif token == "start":
            command = [sys.executable, "-c", "import time; time.sleep(60)"]
            started = subprocess.Popen(command, close_fds=False)
            notes.write_text(f"{started.pid}")
        return str(os.getpid()).encode()

    return obey


def starved(room: int) -> Answer:
    """Return a function that allocates memory under a limit."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))

    def fill(message: bytes) -> bytes:
        wanted, piece = int(message), 1 << 22
        held = [bytearray(piece) for _ in range(wanted // piece)]
        return str(sum(map(len, held))).encode()

    return fill


def modules() -> Answer:
    return lambda _: " ".join(sorted(sys.modules))


def unable(path: str) -> Answer:
    Path(path).read_bytes()
    return bytes


def killed_at_start() -> Answer:
    os.kill(os.getpid(), signal.SIGKILL)
    return bytes
