"""The transport protocol: send messages to devices and return their replies."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

ENROL = b""
"""Message that requests an enrolment from a site's worker; no task is empty."""
PREPARE = b"factors"
"""Message that requests a site to compile for tasks with factors; no task is so short.
The answer is the same message."""
LONGEST = 600
"""Maximum characters of a failure's reason: cause, place and cure."""
LONGEST_MESSAGE = 16 * LONGEST
"""Maximum characters of a failure message: each may be escaped in JSON."""


class FailureCause(Enum):
    """The type of a failure; the server's reaction depends on it.

    Example:
        >>> FailureCause("refused") is FailureCause.REFUSED
        True
    """

    LATE = "late"
    """No reply before the timeout; the reply may still arrive."""
    NOT_AWAITED = "not awaited"
    """The exchange closed early, because enough other devices had replied."""
    UNREACHED = "unreached"
    """The transport could not reach the device."""
    REFUSED = "refused"
    """The device refuses this task, but may accept another."""
    FAILED = "failed"
    """The computation failed, or the reply is not valid."""
    LOST_STATE = "lost state"
    """The device state is lost: the device must restart from its first state."""
    UNABLE = "unable"
    """The device cannot participate, and a retry would fail in the same way."""


OF_SITES = (
    FailureCause.REFUSED,
    FailureCause.FAILED,
    FailureCause.LOST_STATE,
    FailureCause.UNABLE,
)
"""Causes that a site may report; the server sets the others."""


class Failure(NamedTuple):
    """The reason for a missing or invalid upload of a device.

    Attributes:
        cause: type of the failure, which decides the server's reaction.
        reason: text for people, printed after the device's name.

    Example:
        >>> refused = Failure(FailureCause.REFUSED, "refused: no such phase")
        >>> Failure.decode(refused.encode()) == refused
        True
        >>> Failure.decode("anything else")
        Failure(cause=<FailureCause.FAILED: 'failed'>, reason='anything else')
    """

    cause: FailureCause
    reason: str

    def encode(self) -> str:
        """Return the failure as JSON."""
        return json.dumps([self.cause.value, self.reason[:LONGEST]])

    @classmethod
    def decode(cls, text: str) -> "Failure":
        """Return the failure that a site has sent; any other text is a reason too."""
        try:
            # A long message is not parsed: its objects could take many times its size
            # in the server's memory.
            if len(text) > LONGEST_MESSAGE:
                raise ValueError
            value, reason = json.loads(text)
            cause = FailureCause(value)
        except (ValueError, TypeError, RecursionError):
            cause, reason = FailureCause.FAILED, text
        if cause not in OF_SITES:
            cause = FailureCause.FAILED
        return cls(cause, readable(str(reason)))


def readable(text: str) -> str:
    """Return the first characters of a site's text, without quotation marks.

    Example:
        >>> readable('no file "data.csv"')
        "no file 'data.csv'"
    """
    # JSON can hold half of a surrogate pair, which cannot be encoded as UTF-8. Site
    # names are printed in quotation marks: a reason must not imitate another site.
    whole = text[:LONGEST].encode("utf-8", "backslashreplace").decode()
    return whole.replace('"', "'")[:LONGEST]


class RefusedError(ValueError):
    """An invalid message, or a task that the site's rules forbid.

    Attributes:
        cause: type of the failure that a device reports.

    Example:
        >>> RefusedError("y is missing").failure.reason
        'refused: y is missing'
    """

    cause = FailureCause.REFUSED

    @property
    def failure(self) -> Failure:
        """The failure that the device sends."""
        return Failure(self.cause, f"refused: {self}")


class Reply(NamedTuple):
    """The reply of a device, or its failure.

    Attributes:
        device: name, authenticated by the transport.
        message: bytes, not validated yet.
        failure: failure, if there is no message.

    Example:
        >>> failure = Failure(FailureCause.FAILED, "ran out of memory")
        >>> Reply("hospital-1", failure=failure).message is None
        True
    """

    device: str
    message: bytes | None = None
    failure: Failure | None = None


@runtime_checkable
class Transport(Protocol):
    """A connection from the server to its devices, which authenticates them.

    Failures are yielded as replies. A late reply may be yielded in a later call. An
    exception that a transport raises ends the run, which can be resumed.
    """

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        """Request enrolments, and yield them until time is up.

        Args:
            names: names of the devices.
            left: function that returns the remaining seconds.
        """

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Send messages, and yield replies as they arrive until time is up.

        Args:
            messages: message to each device, by name; possibly one object for all.
            left: function that returns the remaining seconds, which a reply may
                reduce.
        """
