"""A computation in a process of its own, whose death is an error here and no more."""

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

    def __init__(self, make: Callable[..., Answer], *arguments: Any) -> None:
        try:
            self._order = pickle.dumps((make, arguments))
        except Exception as error:
            raise ValueError(
                f"{make} must be a function of a module, and its arguments must be "
                f"ones that can be pickled: {error}"
            ) from error
        self._child: Child | None = None
        self._next: tuple[Future[bytes | str], bytes] | None = None
        self._closed = False
        self._changed = threading.Condition()
        # A daemon: a computation that goes on must not keep this process from ending.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def ask(self, message: bytes, timeout: float | None = None) -> bytes | str:
        """Return the child's answer.

        A computation that takes too long is held for hung: its process is ended, and
        the next message starts another.

        Args:
            message: for the function that `make` returned.
            timeout: seconds to wait at most, the child's start included.

        Raises:
            WorkerError: there is no answer.
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
            newer = "a newer task has come meanwhile"
            raise WorkerError(CLOSED if self._closed else newer) from None
        except TimeoutError:
            if future.done():
                return future.result()
            reason = f"the computation took longer than {timeout:g} seconds"
            # One that has not begun never will.
            if not future.cancel() and self._end_child():
                reason += " and was ended"
            raise WorkerError(reason) from None

    def close(self) -> None:
        """End the child at once; messages without an answer fail."""
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
        while self._answer_one():
            pass
        if self._child:
            self._child.ended()

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
            except Exception as error:
                # No memory for the answer, say: the child's next words would not be
                # read from their start.
                if self._child:
                    self._child.kill()
                    self._child.ended()
                future.set_exception(WorkerError(f"asking failed: {error!r}"))
        return True

    def _exchange(self, message: bytes) -> bytes | str:
        child = self._child
        if not child or not child.lives():
            with self._changed:
                # Or else a child might begin that `close` does not know of.
                if self._closed:
                    raise WorkerError(CLOSED)
                if child:
                    child.ended()
                child = self._child = Child()
            child.begin(self._order)
        return child.ask(message)
