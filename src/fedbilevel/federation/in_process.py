"""A transport without a network: sites in this process, and faults on the way."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import RefusedError, Reply


class InProcess:
    """Asks sites that are objects here, one after another.

    Args:
        sites: by name.
        fault: what becomes of an exchange's replies on their way.

    Example:
        >>> list(InProcess({}).exchange({}, left=lambda: 1.0))
        []
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        fault: Callable[[Iterable[Reply]], Iterable[Reply]] = lambda replies: replies,
    ) -> None:
        self._sites, self._fault = dict(sites), fault

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        """Yield what the sites tell of their data."""
        for name in names:
            yield Reply(name, self._sites[name].enrolment.encode())

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Yield the replies, as the faults leave them."""
        yield from self._fault(self._reply(*one) for one in messages.items())

    def _reply(self, name: str, message: bytes) -> Reply:
        try:
            return Reply(name, self._sites[name].answer(message))
        except RefusedError as error:
            return Reply(name, failure=error.failure)
