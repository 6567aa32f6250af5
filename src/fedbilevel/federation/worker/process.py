"""The parent's view of a worker's child: start it, ask it, notice that it died."""

import os
import signal
import subprocess
import sys

from fedbilevel.federation.worker.channel import pair
from fedbilevel.federation.worker.child import FAILED, MARK, SAID, UNABLE

LOOKS_EVERY = 1.0
"""Seconds between two looks at whether a silent child still lives."""
PATIENCE = 5.0
"""Seconds that a child which hung up has to end by itself."""
# Not multiprocessing's own start: it would import the parent's main module, which in a
# site is the one of the federation's software. Ctrl-C in a terminal is for the parent.
BEGIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
descriptor, parent, *sys.path = sys.argv[1:]
from fedbilevel.federation.worker.child import _begin
_begin(int(descriptor), int(parent))
"""


class WorkerError(RuntimeError):
    """A message that got no answer; says why in one sentence.

    Attributes:
        summary: the same without what an exception says, which may be about data.
        is_final: whether another try would fail likewise.

    Example:
        >>> str(WorkerError("the computation took longer than 3 seconds"))
        'the computation took longer than 3 seconds'
    """

    def __init__(
        self, words: str, summary: str | None = None, *, is_final: bool = False
    ) -> None:
        super().__init__(words)
        self.summary = summary or words
        self.is_final = is_final


class Child:
    """A process that runs `child`; it begins to start here.

    Raises:
        WorkerError: it could not be started.

    Example:
        >>> import operator, pickle
        >>> child = Child()
        >>> child.begin(pickle.dumps((operator.methodcaller, ("upper",))))
        >>> child.ask(b"hello")
        b'HELLO'
        >>> child.ended()
        0
    """

    def __init__(self) -> None:
        self._channel, there = pair()
        with there:
            descriptor = there.fileno()
            arguments = [str(descriptor), str(os.getpid()), *sys.path]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", BEGIN, *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                )
            except OSError as error:
                self._channel.close()
                words = f"the computation could not begin: {error}"
                raise WorkerError(words, is_final=True) from None

    def begin(self, order: bytes) -> None:
        """Have it call `make`, which comes pickled with its arguments.

        Raises:
            WorkerError: that failed; the child has ended then.
        """
        try:
            self.ask(order)
        except WorkerError:
            self.ended()
            raise

    def ask(self, message: bytes) -> bytes | str:
        """Return its answer.

        Raises:
            WorkerError: it failed, or died.
        """
        try:
            self._channel.send(message)
        except OSError:
            raise WorkerError(_death(self.ended())) from None
        outcome, content = self._received(), self._received()
        if outcome in (FAILED, UNABLE):
            words = f"the computation {content.decode()}"
            summary, _, said = words.partition(MARK)
            raise WorkerError(summary + said, summary, is_final=outcome == UNABLE)
        return content.decode() if outcome == SAID else content

    def lives(self) -> bool:
        """Return whether it can be asked."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once; safe while another thread waits for its answer."""
        self._process.kill()

    def ended(self) -> int:
        """Hang up, wait for its end, and return its exit code."""
        self._channel.close()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _received(self) -> bytes:
        try:
            # A death hangs up, unless a process that the child forked holds on.
            while not self._channel.has_come(LOOKS_EVERY):
                if not self.lives():
                    raise EOFError
            return self._channel.receive()
        except (EOFError, OSError):
            raise WorkerError(_death(self.ended())) from None


def _death(code: int) -> str:
    if code >= 0:
        return f"the computation's process ended by itself (exit code {code})"
    cause = "perhaps out of memory"
    if -code != signal.SIGKILL:
        cause = signal.strsignal(-code) or "unknown"
    return f"the computation was killed (signal {-code}, {cause})"
