"""The child's half of a worker: call `make` once, then answer messages one by one.

What crosses to the parent are bytes alone: of each reply what it is, then its content.
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
from fedbilevel.federation.worker.channel import Channel, inherited

LOOKS_EVERY = 0.5
"""Seconds between two looks at whether the parent still lives."""
Answer = Callable[[bytes], bytes | str]
"""What answers messages: with what was computed, or in words why it was not."""
COMPUTED, SAID, FAILED, UNABLE = b"computed", b"said", b"failed", b"unable"
"""What a reply is: what was computed, words instead, or words of a failure, which with
the last is that of `make`: another child would fail likewise."""
MARK = "\0"
"""Between what happened and what the exception says, which may be about data."""
_LIBRARY = re.compile(r"/(site-packages|lib/python[\d.]+|fedbilevel)/|^<")
LONGEST_REASON = 500
"""Characters of an exception's first line that cross at most."""


def serve(channel: Channel) -> None:
    """Answer what comes over a channel until its other end closes.

    Args:
        channel: brings first `make` and its arguments, pickled, then messages.

    Example:
        >>> import operator
        >>> from fedbilevel.federation.worker.channel import pair
        >>> here, there = pair()
        >>> child = threading.Thread(target=serve, args=(there,))
        >>> child.start()
        >>> here.send(pickle.dumps((operator.methodcaller, ("upper",))))
        >>> here.receive(), here.receive()
        (b'computed', b'')
        >>> here.send(b"hello")
        >>> here.receive(), here.receive()
        (b'computed', b'HELLO')
        >>> here.close()
        >>> child.join()
        >>> there.close()
    """
    try:
        make, arguments = pickle.loads(channel.receive())
        answer = make(*arguments)
    except BaseException as error:
        traceback.print_exc()
        _send(channel, UNABLE, _words("could not begin:", error))
        return
    _send(channel, COMPUTED, b"")
    while True:
        try:
            message = channel.receive()
        except (EOFError, ConnectionResetError):
            return
        _reply(channel, answer, message)
        # Not held while waiting for the next.
        del message


def _reply(channel: Channel, answer: Answer, message: bytes) -> None:
    try:
        answered = answer(message)
        if not isinstance(answered, bytes | str):
            kind = type(answered).__name__
            raise TypeError(f"the answer must be bytes or words, not {kind}")
    # Whatever it raises, even SystemExit, is the computation's failure and not ours.
    except BaseException as error:
        traceback.print_exc()
        _send(channel, FAILED, _words("raised", error))
        return
    if isinstance(answered, str):
        _send(channel, SAID, answered.encode(errors="backslashreplace"))
    else:
        _send(channel, COMPUTED, answered)


def _send(channel: Channel, outcome: bytes, content: bytes) -> None:
    channel.send(outcome)
    channel.send(content)


def _words(event: str, error: BaseException) -> bytes:
    """Return an exception's name and first line; the rest stays on standard error."""
    line = first_line(error, LONGEST_REASON)
    name = f"{type(_first(error)).__name__}{_place(_first(error))}"
    reason = f": {line}" if line else ""
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
    # The computation holds this thread, perhaps for long after the parent has died.
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    with inherited(descriptor) as channel:
        serve(channel)


def _end_after(parent: int) -> None:
    # A killed parent says nothing, and its end of the connection stays open if a
    # process that it forked holds it too; but its children get another parent.
    while os.getppid() == parent:
        time.sleep(LOOKS_EVERY)
    os._exit(1)
