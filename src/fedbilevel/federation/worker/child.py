"""The child process of a worker: call `make` once, then answer messages one by one.

A reply to the parent is two messages of bytes: its type, then its content.
"""

import os
import pickle
import re
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from fedbilevel.error_text import first_line
from fedbilevel.federation.worker.channel import Channel, inherit

POLL_SECONDS = 0.5
"""Seconds between two checks that the parent is alive."""
Answer = Callable[[bytes], bytes | str]
"""Function that answers a message with a result, or with text on failure."""
RESULT, TEXT, FAILED, UNABLE = b"result", b"text", b"failed", b"unable"
"""Types of a reply: a result, text instead of a result, or an exception. UNABLE is an
exception of `make`, which another child would raise as well."""
MARK = "\0"
"""Separator before the exception's message, which may contain data."""
_LIBRARY = re.compile(r"/(site-packages|lib/python[\d.]+|fedbilevel)/|^<")
LONGEST_REASON = 500
"""Maximum characters of an exception's first line."""


def serve(channel: Channel) -> None:
    """Answer the messages of a channel until its other end closes.

    Args:
        channel: channel whose first message is `make` with its arguments, pickled.

    Example:
        >>> import operator
        >>> from fedbilevel.federation.worker.channel import pair
        >>> parent, child = pair()
        >>> thread = threading.Thread(target=serve, args=(child,))
        >>> thread.start()
        >>> parent.send(pickle.dumps((operator.methodcaller, ("upper",))))
        >>> parent.receive(), parent.receive()
        (b'result', b'')
        >>> parent.send(b"hello")
        >>> parent.receive(), parent.receive()
        (b'result', b'HELLO')
        >>> parent.close()
        >>> thread.join()
        >>> child.close()
    """
    try:
        make, arguments = pickle.loads(channel.receive())
        answer = make(*arguments)
    except BaseException as error:
        traceback.print_exc()
        _send(channel, UNABLE, _describe("could not begin:", error))
        return
    _send(channel, RESULT, b"")
    while True:
        try:
            message = channel.receive()
        except (EOFError, ConnectionResetError):
            return
        _reply(channel, answer, message)
        # Free the memory before waiting for the next message.
        del message


def _reply(channel: Channel, answer: Answer, message: bytes) -> None:
    try:
        result = answer(message)
        if not isinstance(result, bytes | str):
            name = type(result).__name__
            raise TypeError(f"the answer must be bytes or str, not {name}")
    # Any exception, even SystemExit, is a failure of the computation.
    except BaseException as error:
        traceback.print_exc()
        _send(channel, FAILED, _describe("raised", error))
        return
    if isinstance(result, str):
        _send(channel, TEXT, result.encode(errors="backslashreplace"))
    else:
        _send(channel, RESULT, result)


def _send(channel: Channel, outcome: bytes, content: bytes) -> None:
    channel.send(outcome)
    channel.send(content)


def _describe(event: str, error: BaseException) -> bytes:
    """Return an exception's name and first line; the rest is on standard error."""
    line = first_line(error, LONGEST_REASON)
    name = f"{type(_first(error)).__name__}{_location(_first(error))}"
    reason = f": {line}" if line else ""
    return f"{event} {name}{MARK}{reason}".encode(errors="backslashreplace")


def _first(error: BaseException) -> BaseException:
    """Return the first exception of a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _location(error: BaseException) -> str:
    """Return function, file and line of an exception, in code outside libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    local = [frame for frame in frames if not _LIBRARY.search(frame.filename)]
    if not local:
        return ""
    last = local[-1]
    return f" in {last.name} of {Path(last.filename).name}, line {last.lineno}"


def _begin(descriptor: int, parent: int) -> None:
    """Serve in this process while its parent is alive."""
    # The computation may block this thread long after the parent has died.
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    with inherit(descriptor) as channel:
        serve(channel)


def _end_after(parent: int) -> None:
    # The connection of a killed parent stays open if a process that it forked holds
    # it too, so check the parent's id, which changes when the parent dies.
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
