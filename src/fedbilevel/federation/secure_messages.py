"""Messages of a secure exchange: a request of the protocol, and the task in the first.

This module imports nothing of the extra `secure`, so that any site can recognise the
messages.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedbilevel.engines.whole_shares import SHARE_UNITS
from fedbilevel.federation.messages import COUNTED_BYTES
from fedbilevel.federation.transport import RefusedError
from fedbilevel.federation.wire_format import CHECKSUM, decode, encode

STEPS = ("advertise", "share", "mask", "confirm", "unmask")
"""The requests of a secure sum, in their order."""
ATTEMPT_BYTES = 16
"""Length of the random name of an attempt."""
FIRST = b'{"secure"'
"""Start of the header of a secure message in the wire format."""


class SecureMessage(NamedTuple):
    """A request to a site, or its answer.

    Attributes:
        step: position of the request in `STEPS`.
        attempt: random bytes of the server, new for each attempt of an exchange, so
            that a late answer is not taken for another.
        packet: bytes of the protocol of secure sums.
        roster: whole share of each site of the exchange, by name; in the first request
            only.
        task: message with the task; in the first request only.

    Example:
        >>> message = SecureMessage(1, bytes(16), b"keys").encode()
        >>> SecureMessage.decode(message).packet
        b'keys'
    """

    step: int
    attempt: bytes
    packet: bytes = b""
    roster: Mapping[str, int] = {}
    task: bytes = b""

    @property
    def name(self) -> str:
        """The name of the request."""
        return STEPS[self.step]

    def encode(self) -> bytes:
        """Return the message as bytes."""
        roster = json.dumps(dict(self.roster)).encode()
        return encode(
            {
                "secure": np.array([self.step], np.uint8),
                "attempt": _bytes(self.attempt),
                "packet": _bytes(self.packet),
                "roster": _bytes(roster),
                "task": _bytes(self.task),
            }
        )

    @classmethod
    def decode(cls, message: bytes) -> "SecureMessage":
        """Return the content of a message.

        Raises:
            RefusedError: if the message is not valid.
        """
        arrays = decode(message)
        fields = ("secure", "attempt", "packet", "roster", "task")
        if tuple(arrays) != fields or any(
            array.dtype != np.uint8 or array.ndim != 1 for array in arrays.values()
        ):
            raise RefusedError("the message is not one of a secure exchange")
        step, attempt = arrays["secure"], arrays["attempt"].tobytes()
        if step.size != 1 or step[0] >= len(STEPS) or len(attempt) != ATTEMPT_BYTES:
            raise RefusedError("the message names no request of a secure exchange")
        return cls(
            int(step[0]),
            attempt,
            arrays["packet"].tobytes(),
            _roster(arrays["roster"].tobytes()),
            arrays["task"].tobytes(),
        )


def is_secure(message: bytes) -> bool:
    """Return whether a message is one of a secure exchange rather than a task.

    Example:
        >>> is_secure(SecureMessage(0, bytes(16)).encode()), is_secure(b"anything else")
        (True, False)
    """
    start = CHECKSUM.size + 8
    return message[start : start + len(FIRST)] == FIRST


def binding_of(attempt: bytes, roster: Mapping[str, int], task: bytes) -> bytes:
    """Return the digest of all that the sites of an exchange must see alike.

    A server that sent one site another downlink, or other weights, could make the
    uploads of all others vanish from the sum (Pasquini, Francati and Ateniese, Eluding
    Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022). The
    last field of a task is the one that may differ between sites.

    Raises:
        RefusedError: if another field is the last.

    Example:
        >>> from fedbilevel.engines.protocol import Moment, PhaseReference
        >>> from fedbilevel.federation.messages import Task
        >>> phase, key = PhaseReference(False, 0), np.zeros(2, np.uint32)
        >>> tasks = [
        ...     Task("a1", phase, Moment(3, 0), key, last, {}).encode()
        ...     for last in ((0, 0), (2, 1))
        ... ]
        >>> one, other = (binding_of(bytes(16), {"a": 1}, task) for task in tasks)
        >>> one == other
        True
    """
    if list(decode(task))[-1:] != ["counted"]:
        raise RefusedError("the task's last field is not counted")
    content = memoryview(task)[CHECKSUM.size : -COUNTED_BYTES]
    weights = json.dumps(sorted(roster.items())).encode()
    digest = hashlib.blake2b(digest_size=32)
    for part in (attempt, weights, content):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _roster(content: bytes) -> dict[str, int]:
    try:
        roster = json.loads(content)
    except (ValueError, RecursionError):
        roster = None
    if type(roster) is not dict or not all(
        type(share) is int and 1 <= share <= SHARE_UNITS for share in roster.values()
    ):
        raise RefusedError(
            f"the roster does not have a share of 1 to {SHARE_UNITS} for each site"
        )
    return roster
