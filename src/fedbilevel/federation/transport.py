"""What a transport is: it carries messages to devices and brings their replies."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

LONGEST = 300
"""Characters that are kept of what a device says of its failure."""


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
        words: for people to read, after the device's name.

    Example:
        >>> refused = Failure(Cause.REFUSED, "refused: no such phase")
        >>> Failure.decode(refused.encode()) == refused
        True
        >>> Failure.decode("anything else")
        Failure(cause=<Cause.FAILED: 'failed'>, words='anything else')
    """

    cause: Cause
    words: str

    def encode(self) -> str:
        """Return it as a site sends it."""
        return json.dumps([self.cause.value, self.words])

    @classmethod
    def decode(cls, text: str) -> "Failure":
        """Return what a site has sent instead of an answer, whatever it is."""
        try:
            cause, words = json.loads(text)
            told = cls(Cause(cause), str(words)[:LONGEST])
        except (ValueError, TypeError, RecursionError):
            return cls(Cause.FAILED, text[:LONGEST])
        return told if told.cause in OF_SITES else told._replace(cause=Cause.FAILED)


class RefusedError(ValueError):
    """A message that is not what was agreed upon, or that rules forbid to answer.

    Attributes:
        cause: what it is to the server, if a device raises it.

    Example:
        >>> RefusedError("y is missing").failure.words
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
