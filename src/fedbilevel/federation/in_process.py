"""A transport without a network: all sites live in this process."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import RefusedError, Reply


class InProcess:
    """A transport that calls sites in this process, one after another.

    Args:
        sites: sites by name.
        fault: function that changes the replies of an exchange, to test faults.

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
        """Yield the enrolments of sites."""
        for name in names:
            yield Reply(name, self._sites[name].enrol())

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Yield the replies, changed by `fault`."""
        yield from self._fault(self._reply(*item) for item in messages.items())

    def _reply(self, name: str, message: bytes) -> Reply:
        try:
            return Reply(name, self._sites[name].answer(message))
        except RefusedError as error:
            return Reply(name, failure=error.failure)
