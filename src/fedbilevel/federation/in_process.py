"""A transport without a network: sites in this process, and faults on the way."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fedbilevel.federation.site import Site
from fedbilevel.federation.transport import Reply
from fedbilevel.federation.wire_format import RefusedError


class InProcess:
    """Asks sites that are objects here, one after another.

    Args:
        sites: by name.
        fault: what becomes of an exchange's replies on their way.

    Example:
        >>> list(InProcess({}).exchange(b"", [], left=lambda: 1.0))
        []
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        fault: Callable[[Iterable[Reply]], Iterable[Reply]] = lambda replies: replies,
    ) -> None:
        self._sites, self._fault = dict(sites), fault

    def exchange(
        self, message: bytes, to: Sequence[str], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Yield the replies, as the faults leave them."""
        yield from self._fault(self._reply(name, message) for name in to)

    def _reply(self, name: str, message: bytes) -> Reply:
        try:
            return Reply(name, self._sites[name].answer(message))
        except RefusedError as error:
            return Reply(name, failure=f"refused: {error}")
