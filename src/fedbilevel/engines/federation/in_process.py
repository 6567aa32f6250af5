"""A transport without a network, for tests: sites in this process, and their faults."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedbilevel.engines.federation.enrolment import Enrolment
from fedbilevel.engines.federation.messages import RefusedError, Task
from fedbilevel.engines.federation.site import Site
from fedbilevel.engines.federation.transport import Reply


class InProcess:
    """Asks sites that are objects here, one after another.

    Args:
        sites: by name.
        fault: what happens to each reply on its way: none, one or several come of it.

    Example:
        >>> InProcess({}).devices()
        {}
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        fault: Callable[[Reply], Sequence[Reply]] = lambda reply: [reply],
    ) -> None:
        self._sites, self._fault = dict(sites), fault

    def devices(self) -> dict[str, Enrolment]:
        """Return who is enrolled."""
        return {name: site.enrolment for name, site in self._sites.items()}

    def exchange(
        self, task: Task, to: Sequence[str], timeout: float
    ) -> Iterator[Reply]:
        """Yield the replies, as the faults leave them."""
        for name in to:
            moment = int(task.moment[0]), int(task.moment[1])
            try:
                parcel = self._sites[name].answer(task)
                reply = Reply(name, task.run, moment, parcel)
            except RefusedError as error:
                reply = Reply(name, task.run, moment, failure=str(error))
            yield from self._fault(reply)
