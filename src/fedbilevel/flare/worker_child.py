"""The child's half of a worker: call `make` once, then answer messages one by one.

What crosses to the parent are bytes alone. Each reply begins with what went wrong, and
nothing (no bytes) if all is well; then comes the answer.
"""

import os
import pickle
import re
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

LOOKS_EVERY = 0.5
"""Seconds between two looks at whether the parent still lives."""
MARK = "\0"
"""Between what happened and what the exception says, which may be about data."""
_LIBRARY = re.compile(r"/(site-packages|lib/python[\d.]+|fedbilevel)/|^<")
LONGEST_REASON = 500
"""Characters of an exception's first line that cross at most."""


def serve(connection: Connection) -> None:
    """Answer what comes over a connection until its other end closes.

    Args:
        connection: brings first `make` and its arguments, pickled, then messages.

    Example:
        >>> import operator
        >>> from multiprocessing import Pipe
        >>> here, there = Pipe()
        >>> child = threading.Thread(target=serve, args=(there,))
        >>> child.start()
        >>> here.send_bytes(pickle.dumps((operator.methodcaller, ("upper",))))
        >>> here.recv_bytes()
        b''
        >>> here.send_bytes(b"hello")
        >>> here.recv_bytes(), here.recv_bytes()
        (b'', b'HELLO')
        >>> here.close()
        >>> child.join()
        >>> there.close()
    """
    try:
        make, arguments = pickle.loads(connection.recv_bytes())
        answer = make(*arguments)
    except BaseException as error:
        traceback.print_exc()
        connection.send_bytes(_words("could not begin:", error))
        return
    connection.send_bytes(b"")
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        _reply(connection, answer, message)
        # Not held while waiting for the next.
        del message


def _reply(
    connection: Connection, answer: Callable[[bytes], bytes], message: bytes
) -> None:
    try:
        answered = answer(message)
        if not isinstance(answered, bytes):
            raise TypeError(f"the answer must be bytes, not {type(answered).__name__}")
    # Whatever it raises, even SystemExit, is the computation's failure and not ours.
    except BaseException as error:
        traceback.print_exc()
        connection.send_bytes(_words("raised", error))
        return
    connection.send_bytes(b"")
    connection.send_bytes(answered)


def _words(event: str, error: BaseException) -> bytes:
    """Return an exception's name and first line; the rest stays on standard error."""
    lines = str(error).strip().splitlines()
    name = f"{type(_first(error)).__name__}{_place(_first(error))}"
    reason = f": {lines[0][:LONGEST_REASON]}" if lines else ""
    return f"{event} {name}{MARK}{reason}".encode(errors="backslashreplace")


def _first(error: BaseException) -> BaseException:
    """Return the exception that led to another."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _place(error: BaseException) -> str:
    """Return where an exception arose in code that is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not _LIBRARY.search(one.filename)]
    if not own:
        return ""
    return f" in {own[-1].name} of {Path(own[-1].filename).name}, line {own[-1].lineno}"


def _begin(descriptor: int, parent: int) -> None:
    """Serve in a process that was started for it, while its parent lives."""
    # Processes that the computation starts must not keep the connection open.
    os.set_inheritable(descriptor, False)
    # The computation holds this thread, perhaps for long after the parent has died.
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    serve(Connection(descriptor))


def _end_after(parent: int) -> None:
    # A killed parent says nothing, and its end of the connection stays open if a
    # process that it forked holds it too; but its children get another parent.
    while os.getppid() == parent:
        time.sleep(LOOKS_EVERY)
    os._exit(1)
