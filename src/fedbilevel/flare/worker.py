"""A computation in a process of its own, whose death is an error here and no more."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from fedbilevel.flare.worker_child import MARK

LOOKS_EVERY = 1.0
"""Seconds between two looks at whether a silent child still lives."""
PATIENCE = 5.0
"""Seconds that a child which hung up has to end by itself."""
CLOSED = "the worker is closed"
# Not multiprocessing's own start: it would import the parent's main module, which in a
# site is the one of the federation's software. Ctrl-C in a terminal is for the parent.
BEGIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
descriptor, parent, *sys.path = sys.argv[1:]
from fedbilevel.flare.worker_child import _begin
_begin(int(descriptor), int(parent))
"""


class WorkerError(RuntimeError):
    """A message that got no answer; says why in one sentence.

    Attributes:
        summary: the same without what an exception says, which may be about data.

    Example:
        >>> str(WorkerError("the computation took longer than 3 seconds"))
        'the computation took longer than 3 seconds'
    """

    def __init__(self, words: str, summary: str | None = None) -> None:
        super().__init__(words)
        self.summary = summary or words


class _Child(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


class Worker:
    """Answers messages in a child process, which is started when one comes.

    The child lives until it dies or `close` is called: what it has loaded and compiled
    stays. After a death the next message starts a new one. It ends when this process
    ends, even if that is killed. One message is computed at a time, and one may wait;
    a newer one takes its place. Calls from several threads are safe.

    Args:
        make: a function of a module that the child can import. It is called once in
            each child, and returns the function that answers messages.
        arguments: of `make`; they are pickled.

    Raises:
        ValueError: `make` or its arguments cannot be pickled.

    Example:
        >>> import operator
        >>> with Worker(operator.methodcaller, "upper") as worker:
        ...     worker.ask(b"hello")
        b'HELLO'
    """

    def __init__(
        self, make: Callable[..., Callable[[bytes], bytes]], *arguments: Any
    ) -> None:
        try:
            self._order = pickle.dumps((make, arguments))
        except Exception as error:
            raise ValueError(
                f"{make} must be a function of a module, and its arguments must be "
                f"ones that can be pickled: {error}"
            ) from error
        self._child: _Child | None = None
        self._next: tuple[Future[bytes], bytes] | None = None
        self._closed = False
        self._changed = threading.Condition()
        # A daemon: a computation that goes on must not keep this process from ending.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def ask(self, message: bytes, timeout: float | None = None) -> bytes:
        """Return the child's answer.

        A computation that takes too long goes on, and its answer is thrown away; later
        messages wait for its end.

        Args:
            message: for the function that `make` returned.
            timeout: seconds to wait at most, the child's start included.

        Raises:
            WorkerError: there is no answer.
        """
        future = Future[bytes]()
        with self._changed:
            if self._closed:
                raise WorkerError(CLOSED)
            if self._next:
                self._next[0].cancel()
            self._next = future, message
            self._changed.notify()
        try:
            return future.result(timeout)
        except CancelledError:
            newer = "a newer task has come meanwhile"
            raise WorkerError(CLOSED if self._closed else newer) from None
        except TimeoutError:
            # One that has not begun never will.
            future.cancel()
            reason = f"the computation took longer than {timeout:g} seconds"
            raise WorkerError(reason) from None

    def close(self) -> None:
        """End the child at once; messages without an answer fail."""
        with self._changed:
            self._closed = True
            if self._next:
                self._next[0].cancel()
            if self._child:
                self._child.process.kill()
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while self._answer_one():
            pass
        if self._child:
            _ended(self._child)

    def _answer_one(self) -> bool:
        """Answer the next message when it comes; return false once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._next)
            if self._closed or not self._next:
                return False
            (future, message), self._next = self._next, None
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._exchange(message))
            except WorkerError as error:
                future.set_exception(WorkerError(CLOSED) if self._closed else error)
        return True

    def _exchange(self, message: bytes) -> bytes:
        child = self._child
        if not child or child.process.poll() is not None:
            child = self._started()
        try:
            child.connection.send_bytes(message)
            _raise_failure(child)
            return _received(child)
        except (EOFError, OSError):
            raise WorkerError(_death(_ended(child))) from None
        except MemoryError:
            # A half-read answer: whatever came next would not be read from its start.
            child.process.kill()
            _ended(child)
            raise WorkerError("there is too little memory for the answer") from None

    def _started(self) -> _Child:
        with self._changed:
            if self._closed:
                raise WorkerError(CLOSED)
            if self._child:
                _ended(self._child)
            try:
                child = self._child = _begun()
            except OSError as error:
                raise WorkerError(f"the computation could not begin: {error}") from None
        try:
            child.connection.send_bytes(self._order)
            _raise_failure(child)
        except WorkerError:
            _ended(child)
            raise
        except (EOFError, OSError):
            raise WorkerError(_death(_ended(child))) from None
        return child


def _begun() -> _Child:
    here, there = Pipe()
    with there:
        descriptor = there.fileno()
        arguments = [str(descriptor), str(os.getpid()), *sys.path]
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
        )
    return _Child(process, here)


def _received(child: _Child) -> bytes:
    # A death closes the connection, unless a process that the child forked holds it.
    while not child.connection.poll(LOOKS_EVERY):
        if child.process.poll() is not None:
            raise EOFError
    return child.connection.recv_bytes()


def _raise_failure(child: _Child) -> None:
    if failure := _received(child):
        summary, _, reason = f"the computation {failure.decode()}".partition(MARK)
        raise WorkerError(summary + reason, summary)


def _ended(child: _Child) -> int:
    """Return the exit code of a child that has hung up; its process is gone then."""
    child.connection.close()
    try:
        return child.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.process.kill()
        return child.process.wait()


def _death(code: int) -> str:
    if code >= 0:
        return f"the computation's process ended by itself (exit code {code})"
    cause = "perhaps out of memory"
    if -code != signal.SIGKILL:
        cause = signal.strsignal(-code) or "unknown"
    return f"the computation was killed (signal {-code}, {cause})"
