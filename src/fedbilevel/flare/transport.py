"""The Collab API of NVIDIA FLARE as a transport."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.federation.replies import NO_ANSWER
from fedbilevel.federation.transport import LONGEST, Cause, Failure, Reply
from fedbilevel.flare.site_failures import failures_in, note_failure

GRACE = 1.0
"""Seconds after a timeout in which the software says why there was no answer."""
LOOKS_EVERY = 0.05
"""Seconds between two looks at whether the job is aborted, or a site has failed."""
MOST_CALLS = 4
"""Calls of one site under way; each holds threads and what has come of the answer."""
DRIPPING = 30.0
"""Seconds after its timeout at which a call has ended, unless its answer drips in."""
DRIPS = "sends its answers too slowly"
BUSY = Failure(Cause.UNREACHED, f"did not answer the last {MOST_CALLS} exchanges yet")
NOT_CONNECTED = Failure(Cause.UNREACHED, "was not connected when the job began")

Arrivals: TypeAlias = "SimpleQueue[tuple[Reply, bool]]"
"""Replies, each with whether the site was reached."""


class Calls:
    """Calls of a job's sites, each of which ends by the server's clock.

    To be used within the main function of a Collab server. Names are those of the
    sites' certificates. A site that has failed (`site_failures`) is called no more.

    Args:
        job: the directory of the job at the server.

    Attributes:
        awaited: the sites whose replies are waited for now.

    Example:
        >>> Calls(Path("job")).open_calls("site-1")
        0
    """

    def __init__(self, job: Path) -> None:
        self._job = job
        # Until when each open call of a site has to end; one dict for each site.
        self._open: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._count = 0
        self.awaited: set[str] = set()

    def open_calls(self, site: str) -> int:
        """Return how many calls of a site have not ended."""
        return len(self._open[site])

    @property
    def any_is_open(self) -> bool:
        """Whether a call of some site has not ended."""
        return any(self._open.values())

    def present(self) -> set[str]:
        """Return the sites of the job."""
        return {proxy.name for proxy in collab.clients}

    def drop(self, site: str, reason: str) -> None:
        """Call a site no more in this job."""
        note_failure(self._job, site, reason)

    def make(
        self,
        call: Callable[[Any, str], Any],
        to: Iterable[str],
        left: Callable[[], float],
    ) -> Iterator[Reply]:
        """Call sites, and yield replies as they arrive, until time is up.

        Args:
            call: calls a published method of a Collab group, which is one site.
            to: names of sites.
            left: returns the seconds that are left.

        Raises:
            RunAborted: the job has been, meanwhile.
        """
        arrived: Arrivals = SimpleQueue()
        awaited = self.awaited = set()
        unreached: list[Reply] = []
        self._drop_dripping()
        failures = failures_in(self._job)
        present = self.present()
        for name in to:
            if name in failures:
                yield Reply(name, failure=Failure(Cause.FAILED, failures[name]))
            elif name not in present:
                yield Reply(name, failure=NOT_CONNECTED)
            elif self.open_calls(name) >= MOST_CALLS:
                yield Reply(name, failure=BUSY)
            else:
                self._begin(call, name, left(), arrived)
                awaited.add(name)
        # Its own clock begins anew with every piece of a message, however slow.
        until = time.monotonic() + left()
        while awaited:
            closes = time.monotonic() + left()
            # Not where it closes early, as enough have answered.
            grace = GRACE if closes >= until - LOOKS_EVERY else 0.0
            rest = closes + grace - time.monotonic()
            try:
                wait = max(0.0, min(rest, LOOKS_EVERY))
                reply, is_reached = arrived.get(timeout=wait)
            except Empty:
                if rest <= LOOKS_EVERY:
                    break
                failures = failures_in(self._job)
                for name in sorted(awaited & failures.keys()):
                    awaited.discard(name)
                    yield Reply(name, failure=Failure(Cause.FAILED, failures[name]))
                continue
            awaited.discard(reply.device)
            if is_reached:
                yield reply
            else:
                unreached.append(reply)
        # The end of a job is told to its sites first; at the server it then ends calls
        # as if sites had been late. So who cannot be reached is waited for as well.
        while unreached and not collab.is_aborted and left() > 0:
            time.sleep(LOOKS_EVERY)
            if {one.device for one in unreached} <= failures_in(self._job).keys():
                break
        if collab.is_aborted:
            raise RunAborted("the job was aborted during an exchange")
        failures = failures_in(self._job)
        for one in unreached:
            if one.device in failures:
                noted = Failure(Cause.FAILED, failures[one.device])
                one = one._replace(failure=noted)
            yield one

    def _begin(
        self,
        call: Callable[[Any, str], Any],
        name: str,
        timeout: float,
        arrived: Arrivals,
    ) -> None:
        # One site a group: a group has ended only when all of its sites have.
        group = collab.get_clients([name])(blocking=False, timeout=timeout)
        number = self._count = self._count + 1
        self._open[name][number] = time.monotonic() + timeout + DRIPPING
        results = call(group, name)

        def drain() -> None:
            try:
                for _, found in results:
                    arrived.put((_reply(name, found), True))
                for error in dict(results.failures).values():
                    arrived.put((Reply(name, failure=_failure(error)), False))
            except Exception as error:
                # An answer that cannot even be unpacked is its site's failure.
                arrived.put((Reply(name, failure=_failure(error)), True))
            finally:
                del self._open[name][number]

        threading.Thread(target=drain, daemon=True).start()

    def _drop_dripping(self) -> None:
        """Write down as failed who still sends an answer long after its timeout."""
        now = time.monotonic()
        for name, calls in self._open.items():
            if any(until < now for until in list(calls.values())):
                note_failure(self._job, name, DRIPS)


class Collab:
    """Carries messages between a job's server and its sites.

    Args:
        calls: of the job's sites.
        needed: bytes of the largest message that sites must take.

    Example:
        >>> Collab.__name__
        'Collab'
    """

    def __init__(self, calls: Calls, needed: int) -> None:
        self._calls, self._needed = calls, needed

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        """Ask sites what they hold, and yield replies until time is up.

        Raises:
            RunAborted: the job has been, meanwhile.
        """

        def call(group: Any, name: str) -> Any:
            return group.enrol(self._needed)

        return self._calls.make(call, names, left)

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Send messages, and yield replies as they arrive, until time is up.

        Raises:
            RunAborted: the job has been, meanwhile.
        """

        def call(group: Any, name: str) -> Any:
            return group.answer(messages[name])

        return self._calls.make(call, messages, left)


def _reply(name: str, found: Any) -> Reply:
    if type(found) is bytes:
        return Reply(name, found)
    if type(found) is str:
        return Reply(name, failure=Failure.decode(found))
    words = f"sent a {type(found).__name__}"
    return Reply(name, failure=Failure(Cause.FAILED, words))


def _failure(error: Exception) -> Failure:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, TimeoutError):
        return NO_ANSWER
    words = f"could not be reached: {str(cause)[:LONGEST]}"
    return Failure(Cause.UNREACHED, words)
