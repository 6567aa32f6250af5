"""What a transport is: it carries a task to devices and brings their replies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedbilevel.engines.federation.enrolment import Enrolment
from fedbilevel.engines.federation.messages import Task


class Reply(NamedTuple):
    """What has come from a device, or why nothing has.

    Attributes:
        device: its name, as the transport knows it, whatever the reply claims.
        run: the run that it answers.
        moment: the exchange that it answers: round and place in the round.
        parcel: what it sends; nothing is known of it yet.
        failure: why there is nothing, in words.

    Example:
        >>> Reply("hospital-1", failure="out of memory").parcel is None
        True
    """

    device: str
    run: str = ""
    moment: tuple[int, int] = (0, 0)
    parcel: Any = None
    failure: str | None = None


@runtime_checkable
class Transport(Protocol):
    """Carries messages; how, and with which identities, is its own affair."""

    def devices(self) -> Mapping[str, Enrolment]:
        """Return who is enrolled, by name."""

    def exchange(
        self, task: Task, to: Sequence[str], timeout: float
    ) -> Iterator[Reply]:
        """Send a task, and yield replies as they arrive, until time is up.

        Failures are replies too. What comes late may be yielded in a later exchange.
        """
