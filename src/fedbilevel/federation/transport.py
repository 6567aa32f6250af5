"""What a transport is: it carries messages to devices and brings their replies."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

ENROL = b""
"""The message by which a site's processes ask for its enrolment: no task is empty."""
LONGEST = 300
"""Characters that are kept of what a device says of its failure."""
LONGEST_MESSAGE = 16 * LONGEST
"""Characters of such a message that is read at all: each may be escaped in JSON."""


class Cause(Enum):
    """Why a device's upload does not count, as far as the server acts upon it.

    Example:
        >>> Cause("refused") is Cause.REFUSED
        True
    """

    LATE = "late"
    """It has not answered in time, and may answer yet."""
    NOT_AWAITED = "not awaited"
    """It might have answered yet, but enough others had."""
    UNREACHED = "unreached"
    """The transport did not reach it."""
    REFUSED = "refused"
    """It will not answer this task; another it may."""
    FAILED = "failed"
    """Its computation failed, or what it sent cannot be used."""
    LOST_STATE = "lost state"
    """What it kept for itself is gone: it can only begin afresh."""
    UNABLE = "unable"
    """It cannot take part, and another try would not help."""


OF_SITES = Cause.REFUSED, Cause.FAILED, Cause.LOST_STATE, Cause.UNABLE
"""What a site may say of itself; the others are for its server to say."""


class Failure(NamedTuple):
    """Why there is no upload of a device.

    Attributes:
        cause: for the server to act upon.
        reason: for people to read, after the device's name.

    Example:
        >>> refused = Failure(Cause.REFUSED, "refused: no such phase")
        >>> Failure.decode(refused.encode()) == refused
        True
        >>> Failure.decode("anything else")
        Failure(cause=<Cause.FAILED: 'failed'>, reason='anything else')
    """

    cause: Cause
    reason: str

    def encode(self) -> str:
        """Return it as a site sends it."""
        return json.dumps([self.cause.value, self.reason[:LONGEST]])

    @classmethod
    def decode(cls, text: str) -> "Failure":
        """Return what a site has sent instead of an answer, whatever it is."""
        try:
            # A long message is not parsed: a site could have the server build objects
            # many times its size.
            if len(text) > LONGEST_MESSAGE:
                raise ValueError
            value, reason = json.loads(text)
            cause = Cause(value)
        except (ValueError, TypeError, RecursionError):
            cause, reason = Cause.FAILED, text
        if cause not in OF_SITES:
            cause = Cause.FAILED
        return cls(cause, readable(str(reason)))


def readable(text: str) -> str:
    """Return the beginning of what a site says, in characters that can be written.

    Example:
        >>> readable('gone, says "west"')
        "gone, says 'west'"
    """
    # JSON can hold half of a character, which no file and no message takes. Names of
    # sites are quoted: none is to be read into another's reason.
    whole = text[:LONGEST].encode("utf-8", "backslashreplace").decode()
    return whole.replace('"', "'")[:LONGEST]


class RefusedError(ValueError):
    """A message that is not what was agreed upon, or that rules forbid to answer.

    Attributes:
        cause: what it is to the server, if a device raises it.

    Example:
        >>> RefusedError("y is missing").failure.reason
        'refused: y is missing'
    """

    cause = Cause.REFUSED

    @property
    def failure(self) -> Failure:
        """What a device replies that raises it."""
        return Failure(self.cause, f"refused: {self}")


class Reply(NamedTuple):
    """What has come from a device, or why nothing has.

    Attributes:
        device: its name, as the transport knows it, whatever the message claims.
        message: what it sends; nothing is known of it yet.
        failure: why there is nothing.

    Example:
        >>> failure = Failure(Cause.FAILED, "ran out of memory")
        >>> Reply("hospital-1", failure=failure).message is None
        True
    """

    device: str
    message: bytes | None = None
    failure: Failure | None = None


@runtime_checkable
class Transport(Protocol):
    """Carries messages; how, and with which identities, is its own affair.

    Failures are replies, too. What comes late may be yielded in a later call. An
    exception that a transport raises ends the run, which can be resumed.
    """

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        """Ask devices what they hold, and yield their enrolments until time is up.

        Args:
            names: of the devices.
            left: returns the seconds that are left.
        """

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Send messages, and yield replies as they arrive, until time is up.

        Args:
            messages: what to send to each device, by name. It may be the same object
                for all.
            left: returns the seconds that are left, which a reply may make fewer.
        """
