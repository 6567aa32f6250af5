"""A computation in a child process, whose death raises an error in the parent."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from fedbilevel.federation.worker.child import Answer
from fedbilevel.federation.worker.process import Child, WorkerError

__all__ = ["Worker", "WorkerError"]

CLOSED = "the worker is closed"


class Worker:
    """A child process that answers messages, started by the first message.

    The child keeps loaded data and compiled functions until it dies or `close` is
    called. After a death the next message starts a new child. The child ends with this
    process, even if this process is killed. One message is computed at a time, and one
    may wait; a newer message replaces the waiting one. Calls are thread-safe.

    Args:
        make: module-level function that the child can import. It is called once in each
            child, and returns the function that answers messages.
        arguments: arguments of `make`; they are pickled.

    Raises:
        ValueError: if `make` or its arguments cannot be pickled.

    Example:
        >>> import operator
        >>> with Worker(operator.methodcaller, "upper") as worker:
        ...     worker.ask(b"hello")
        b'HELLO'
    """

    def __init__(self, make: Callable[..., Answer], *arguments: Any) -> None:
        try:
            self._order = pickle.dumps((make, arguments))
        except Exception as error:
            raise ValueError(
                f"make is {make}, but make and its arguments must be picklable "
                f"({error}); give a module-level function and plain values."
            ) from error
        self._child: Child | None = None
        self._next: tuple[Future[bytes | str], bytes] | None = None
        self._closed = False
        self._changed = threading.Condition()
        # A daemon: a running computation must not keep this process from ending.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def ask(self, message: bytes, timeout: float | None = None) -> bytes | str:
        """Return the child's answer to a message.

        After the timeout the child is killed, and the next message starts another.

        Args:
            message: message to the function that `make` returned.
            timeout: maximum seconds, including the start of the child.

        Raises:
            WorkerError: if there is no answer.
        """
        future = Future[bytes | str]()
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
            newer = "a newer task has replaced this one"
            raise WorkerError(CLOSED if self._closed else newer) from None
        except TimeoutError:
            if future.done():
                return future.result()
            reason = f"the computation took longer than {timeout:g} seconds"
            # A computation that has not started is cancelled.
            if not future.cancel() and self._end_child():
                reason += " and was ended"
            raise WorkerError(reason) from None

    def close(self) -> None:
        """Kill the child; messages without an answer fail."""
        with self._changed:
            self._closed = True
            if self._next:
                self._next[0].cancel()
            if self._child:
                self._child.kill()
            self._changed.notify()
        self._thread.join()

    def _end_child(self) -> bool:
        with self._changed:
            if self._child:
                self._child.kill()
            return self._child is not None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while self._answer_next():
            pass
        if self._child:
            self._child.close()

    def _answer_next(self) -> bool:
        """Answer the next message; return False once closed."""
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
            except Exception as error:
                # After an error such as lack of memory for the answer, the rest of the
                # child's reply would be read as the next reply.
                if self._child:
                    self._child.kill()
                    self._child.close()
                future.set_exception(
                    WorkerError(f"the request to the worker failed: {error!r}")
                )
        return True

    def _exchange(self, message: bytes) -> bytes | str:
        child = self._child
        if not child or not child.lives():
            with self._changed:
                # Otherwise a child might start that `close` does not kill.
                if self._closed:
                    raise WorkerError(CLOSED)
                if child:
                    child.close()
                child = self._child = Child()
            child.begin(self._order)
        return child.ask(message)
