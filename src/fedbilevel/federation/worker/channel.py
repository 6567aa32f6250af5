"""Bytes between two processes of one machine, each message in one piece."""

import os
import socket
import struct
from multiprocessing.connection import wait

HEADER = struct.Struct("q")
"""How many bytes follow."""


class Channel:
    """One end of a connected pair of sockets.

    A message of 50 MB crosses in half the time of multiprocessing's connection, which
    sets aside room for all that is to come at every read: here the kernel fills one
    bytes object.

    Args:
        end: the socket; the channel owns it.

    Example:
        >>> here, there = pair()
        >>> here.send(b"hello")
        >>> there.has_come(1.0), there.receive()
        (True, b'hello')
        >>> here.close(), there.close()
        (None, None)
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._end.fileno()

    def send(self, message: bytes) -> None:
        """Send a message; return when what is left of it fits the kernel's buffer.

        Raises:
            OSError: the other side has hung up.
        """
        self._end.sendall(HEADER.pack(len(message)))
        self._end.sendall(message)

    def receive(self) -> bytes:
        """Wait for a message.

        Raises:
            EOFError: the other side has hung up.
            OSError: likewise, with a message of this side unread.
        """
        (size,) = HEADER.unpack(self._take(HEADER.size))
        return self._take(size)

    def has_come(self, timeout: float) -> bool:
        """Return whether a message, or the end, has come within so many seconds."""
        return bool(wait([self._end], timeout))

    def close(self) -> None:
        """Hang up."""
        self._end.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, size: int) -> bytes:
        # A signal, and 2 GB, end a call early.
        parts = []
        while size:
            parts.append(part := self._end.recv(size, socket.MSG_WAITALL))
            if not part:
                raise EOFError
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def pair() -> tuple[Channel, Channel]:
    """Return two connected ends.

    Example:
        >>> here, there = pair()
        >>> here.close(), there.has_come(1.0), there.close()
        (None, True, None)
    """
    here, there = socket.socketpair()
    return Channel(here), Channel(there)


def inherited(descriptor: int) -> Channel:
    """Return the end that a parent process left open for this one.

    Args:
        descriptor: of the socket; what this process starts does not get it.

    Example:
        >>> here, there = pair()
        >>> with inherited(os.dup(there.fileno())) as again:
        ...     again.send(b"hello")
        ...     here.receive()
        b'hello'
        >>> here.close(), there.close()
        (None, None)
    """
    os.set_inheritable(descriptor, False)
    return Channel(socket.socket(fileno=descriptor))
