"""A worker process that executes runs in sequence for a command."""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

# A subprocess: multiprocessing would import the parent's main module, and a fork would
# break JAX's threads. It gets the parent's sys.path, which may have been changed.
PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from fedbilevel.commands.worker import serve
serve()
"""

ENDED = "ended"
"""Key of the line that a worker prints after a run, with the run's exit code."""

ERROR = "fedbilevel resume: "
"""Prefix of a worker's error message."""


def serve() -> None:
    """Resume the runs whose directories arrive as lines on standard input.

    Each run prints the output of `fedbilevel resume --json`, and a line at its end. A
    worker whose parent was killed ends at the next record, because the pipe is closed.
    """
    from fedbilevel.__main__ import main

    try:
        for line in sys.stdin:
            try:
                code = main(["resume", json.loads(line), "--json", "--trust"])
            except Exception as error:
                traceback.print_exc()
                print(f"{ERROR}{type(error).__name__}: {error}", file=sys.stderr)
                code = 1
            sys.stderr.flush()
            print(json.dumps({ENDED: code}), flush=True)
    except KeyboardInterrupt:
        os._exit(130)


class Worker:
    """A handle of a worker process, for the command that started it.

    Attributes:
        exit_code: exit code of the process; None while it runs.

    Example:
        >>> lines = SimpleQueue()
        >>> worker = Worker(lines)
        >>> worker.close()
        >>> worker.join()
        >>> lines.get() == (worker, None), worker.exit_code
        (True, 0)
    """

    def __init__(self, lines: "SimpleQueue[tuple[Worker, str | None]]") -> None:
        """Start the process; its lines, and None at its end, go into the queue."""
        self._lines = lines
        self.exit_code: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In one stream with records, so that their order is preserved.
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C in a terminal reaches only the parent, which signals its workers.
            start_new_session=True,
            env={
                # Otherwise the first worker reserves three quarters of a GPU's memory.
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                **os.environ,
                "PYTHONIOENCODING": "utf-8",
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, directory: Path) -> None:
        """Send the directory of a run to resume."""
        assert self._process.stdin is not None
        # If the process has ended, the queue has None.
        with suppress(OSError):
            self._process.stdin.write(f"{json.dumps(str(directory))}\n")
            self._process.stdin.flush()

    def interrupt(self) -> None:
        """Stop the run after its current round."""
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Let the process end after its run."""
        assert self._process.stdin is not None
        # If the process has ended, a line may be unread.
        with suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def join(self) -> None:
        """Wait until the process has ended."""
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put((self, line.rstrip("\n")))
        self.exit_code = self._process.wait()
        self._lines.put((self, None))
