"""A message channel between two processes of one machine."""

import os
import socket
import struct
from multiprocessing.connection import wait

HEADER = struct.Struct("q")
"""Number of bytes that follow."""


class Channel:
    """One end of a connected pair of sockets.

    A message of 50 MB takes half the time of `multiprocessing.Connection`, which
    allocates memory for the whole message at every read; parent the kernel fills one
    bytes object.

    Args:
        end: socket, owned by the channel.

    Example:
        >>> parent, child = pair()
        >>> parent.send(b"hello")
        >>> child.poll(1.0), child.receive()
        (True, b'hello')
        >>> parent.close(), child.close()
        (None, None)
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._end.fileno()

    def send(self, message: bytes) -> None:
        """Send a message; return when the rest of it fits the kernel's buffer.

        Raises:
            OSError: if the other end is closed.
        """
        self._end.sendall(HEADER.pack(len(message)))
        self._end.sendall(message)

    def receive(self) -> bytes:
        """Wait for a message.

        Raises:
            EOFError: if the other end is closed.
            OSError: if the other end was closed with a message unread.
        """
        (size,) = HEADER.unpack(self._take(HEADER.size))
        return self._take(size)

    def poll(self, timeout: float) -> bool:
        """Return whether a message or the end arrives within `timeout` seconds."""
        return bool(wait([self._end], timeout))

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, size: int) -> bytes:
        # A signal ends a call early, and so does a message of 2 GB.
        parts = []
        while size:
            parts.append(part := self._end.recv(size, socket.MSG_WAITALL))
            if not part:
                raise EOFError
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def pair() -> tuple[Channel, Channel]:
    """Return the two ends of a new channel.

    Example:
        >>> parent, child = pair()
        >>> parent.close(), child.poll(1.0), child.close()
        (None, True, None)
    """
    parent, child = socket.socketpair()
    return Channel(parent), Channel(child)


def inherit(descriptor: int) -> Channel:
    """Return the end that the parent process left open for this one.

    Args:
        descriptor: descriptor of the socket; processes started here do not inherit it.

    Example:
        >>> parent, child = pair()
        >>> with inherit(os.dup(child.fileno())) as copy:
        ...     copy.send(b"hello")
        ...     parent.receive()
        b'hello'
        >>> parent.close(), child.close()
        (None, None)
    """
    os.set_inheritable(descriptor, False)
    return Channel(socket.socket(fileno=descriptor))
