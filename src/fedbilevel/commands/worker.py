"""A process that carries out one run after another for a command."""

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

# Not multiprocessing, which would import the parent's main module, and not a fork: JAX
# has threads. The parent's own path, since it may have been started in any way.
PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from fedbilevel.commands.worker import serve
serve()
"""

ENDED = "ended"
"""The key of the line that a worker prints after a run, with the run's exit code."""

ERROR = "fedbilevel resume: "
"""The beginning of a worker's error message."""


def serve() -> None:
    """Carry out the runs whose directories come as lines of standard input.

    What `fedbilevel resume --json` prints is printed for each, and a line at its end.
    A worker whose parent was killed ends at the next record: nobody reads it.

    Example:
        >>> serve.__name__
        'serve'
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
    """A worker's process, seen from the command that waits for it.

    Attributes:
        exit_code: None while the process lives.

    Example:
        >>> lines = SimpleQueue()
        >>> worker = Worker(lines)
        >>> worker.close()
        >>> worker.join()
        >>> lines.get() == (worker, None), worker.exit_code
        (True, 0)
    """

    def __init__(self, lines: "SimpleQueue[tuple[Worker, str | None]]") -> None:
        """Start the process; its lines, and None at its end, are put into a queue."""
        self._lines = lines
        self.exit_code: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In one stream with records, so that the order of both is known.
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C in a terminal is for the parent, which tells its workers.
            start_new_session=True,
            env={
                # Otherwise the first worker takes three quarters of a GPU's memory.
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                **os.environ,
                "PYTHONIOENCODING": "utf-8",
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, directory: Path) -> None:
        """Send the directory of a run to be resumed."""
        assert self._process.stdin is not None
        # If it has died, its end is in the queue.
        with suppress(OSError):
            self._process.stdin.write(f"{json.dumps(str(directory))}\n")
            self._process.stdin.flush()

    def interrupt(self) -> None:
        """End the run after the round in progress."""
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Let the process end once its run has ended."""
        assert self._process.stdin is not None
        # If it has died, a line may be left unread.
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
        with self._process.stdout as printed:
            for line in printed:
                self._lines.put((self, line.rstrip("\n")))
        self.exit_code = self._process.wait()
        self._lines.put((self, None))
