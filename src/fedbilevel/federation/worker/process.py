"""The parent's handle of a worker's child process."""

import os
import signal
import subprocess
import sys

from fedbilevel.federation.worker.channel import pair
from fedbilevel.federation.worker.child import FAILED, MARK, TEXT, UNABLE

POLL_SECONDS = 1.0
"""Seconds between two checks that a silent child is alive."""
EXIT_SECONDS = 5.0
"""Timeout in seconds for a child to exit after its channel is closed."""
# multiprocessing would import the parent's main module, which at a site is NVIDIA
# FLARE's. SIGINT is ignored: Ctrl-C in a terminal is for the parent.
BEGIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
descriptor, parent, *sys.path = sys.argv[1:]
from fedbilevel.federation.worker.child import _begin
_begin(int(descriptor), int(parent))
"""


class WorkerError(RuntimeError):
    """A message without an answer; the text is the reason.

    Attributes:
        summary: reason without the exception's message, which may contain data.
        is_final: whether a retry would fail in the same way.
    """

    def __init__(
        self, reason: str, summary: str | None = None, *, is_final: bool = False
    ) -> None:
        super().__init__(reason)
        self.summary = summary or reason
        self.is_final = is_final


class Child:
    """A new process that runs `child.serve`.

    Raises:
        WorkerError: if the process could not be started.

    Example:
        >>> import operator, pickle
        >>> child = Child()
        >>> child.begin(pickle.dumps((operator.methodcaller, ("upper",))))
        >>> child.ask(b"hello")
        b'HELLO'
        >>> child.close()
        0
    """

    def __init__(self) -> None:
        self._channel, other_end = pair()
        with other_end:
            descriptor = other_end.fileno()
            arguments = [str(descriptor), str(os.getpid()), *sys.path]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", BEGIN, *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                )
            except OSError as error:
                self._channel.close()
                reason = f"the computation could not begin: {error}"
                raise WorkerError(reason, is_final=True) from None

    def begin(self, order: bytes) -> None:
        """Have the child call `make`, which is pickled with its arguments.

        Raises:
            WorkerError: if `make` failed; the child has ended then.
        """
        try:
            self.ask(order)
        except WorkerError:
            self.close()
            raise

    def ask(self, message: bytes) -> bytes | str:
        """Return the child's answer to a message.

        Raises:
            WorkerError: if the computation failed, or the child died.
        """
        try:
            self._channel.send(message)
        except OSError:
            raise WorkerError(_death(self.close())) from None
        outcome, content = self._receive(), self._receive()
        if outcome in (FAILED, UNABLE):
            reason = f"the computation {content.decode()}"
            summary, _, detail = reason.partition(MARK)
            raise WorkerError(summary + detail, summary, is_final=outcome == UNABLE)
        return content.decode() if outcome == TEXT else content

    def lives(self) -> bool:
        """Return whether the process is alive."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process; safe while another thread waits for its answer."""
        self._process.kill()

    def close(self) -> int:
        """Close the channel, wait for the process, and return its exit code."""
        self._channel.close()
        try:
            return self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _receive(self) -> bytes:
        try:
            # A death closes the channel, unless a process forked by the child holds it.
            while not self._channel.poll(POLL_SECONDS):
                if not self.lives():
                    raise EOFError
            return self._channel.receive()
        except (EOFError, OSError):
            raise WorkerError(_death(self.close())) from None


def _death(code: int) -> str:
    if code >= 0:
        return f"the computation's process ended by itself (exit code {code})"
    cause = "perhaps out of memory"
    if -code != signal.SIGKILL:
        cause = signal.strsignal(-code) or "unknown"
    return f"the computation was killed (signal {-code}, {cause})"
