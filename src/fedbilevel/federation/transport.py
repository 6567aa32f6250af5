"""What a transport is: it carries a message to devices and brings their replies."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Reply(NamedTuple):
    """What has come from a device, or why nothing has.

    Attributes:
        device: its name, as the transport knows it, whatever the message claims.
        message: what it sends; nothing is known of it yet.
        failure: why there is nothing, in words.

    Example:
        >>> Reply("hospital-1", failure="ran out of memory").message is None
        True
    """

    device: str
    message: bytes | None = None
    failure: str | None = None


@runtime_checkable
class Transport(Protocol):
    """Carries messages; how, and with which identities, is its own affair."""

    def exchange(
        self, message: bytes, to: Sequence[str], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Send a message, and yield replies as they arrive, until time is up.

        Failures are replies too. What comes late may be yielded in a later exchange.

        Args:
            message: for each of them.
            to: their names.
            left: returns the seconds that are left, which a reply may make fewer.
        """
