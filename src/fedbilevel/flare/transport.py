"""A transport over the Collab API of NVIDIA FLARE."""

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
from fedbilevel.federation.transport import LONGEST, Failure, FailureCause, Reply
from fedbilevel.flare.site_failures import failures_in, note_failure

GRACE = 1.0
"""Seconds after a timeout in which NVIDIA FLARE reports its reason."""
POLL_SECONDS = 0.05
"""Seconds between two checks whether the job is aborted or a site has failed."""
MOST_CALLS = 4
"""Maximum open calls of a site; each holds threads and a partial answer in memory."""
DRIPPING = 30.0
"""Seconds after its timeout by which a call has ended, unless its answer is slow."""
DRIPS = "sends its answers too slowly"
BUSY = Failure(
    FailureCause.UNREACHED, f"has not answered the last {MOST_CALLS} exchanges yet"
)
NOT_CONNECTED = Failure(FailureCause.UNREACHED, "was not connected when the job began")

Arrivals: TypeAlias = "SimpleQueue[tuple[Reply, bool]]"
"""Replies, each with a flag that the site was reached."""


class Calls:
    """The calls of a job's sites, with timeouts by the server's clock.

    For use within the main function of a Collab server. Names are those of the sites'
    certificates. A failed site (`site_failures`) is not called again.

    Args:
        job: job directory at the server.

    Attributes:
        awaited: sites whose replies are awaited.

    Example:
        >>> Calls(Path("job")).open_calls("site-1")
        0
    """

    def __init__(self, job: Path) -> None:
        self._job = job
        # Deadline of each open call, by site.
        self._open: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._count = 0
        self.awaited: set[str] = set()

    def open_calls(self, site: str) -> int:
        """Return the number of open calls of a site."""
        return len(self._open[site])

    @property
    def any_is_open(self) -> bool:
        """True if a call of any site is open."""
        return any(self._open.values())

    def present(self) -> set[str]:
        """Return the sites of the job."""
        return {proxy.name for proxy in collab.clients}

    def drop(self, site: str, reason: str) -> None:
        """Log a site as failed, so that this job does not call it again."""
        note_failure(self._job, site, reason)

    def make(
        self,
        call: Callable[[Any, str], Any],
        to: Iterable[str],
        left: Callable[[], float],
    ) -> Iterator[Reply]:
        """Call sites, and yield replies as they arrive until time is up.

        Args:
            call: function that calls a published method of a Collab group of one site.
            to: names of sites.
            left: function that returns the remaining seconds.

        Raises:
            RunAborted: if the job was aborted.
        """
        arrived: Arrivals = SimpleQueue()
        awaited = self.awaited = set()
        unreached: list[Reply] = []
        self._drop_dripping()
        failures = failures_in(self._job)
        present = self.present()
        for name in to:
            if name in failures:
                yield Reply(name, failure=Failure(FailureCause.FAILED, failures[name]))
            elif name not in present:
                yield Reply(name, failure=NOT_CONNECTED)
            elif self.open_calls(name) >= MOST_CALLS:
                yield Reply(name, failure=BUSY)
            else:
                self._begin(call, name, left(), arrived)
                awaited.add(name)
        # Collab's timeout restarts with every piece of a message, so it is not used.
        until = time.monotonic() + left()
        while awaited:
            closes = time.monotonic() + left()
            # There is no grace if the exchange closes early.
            grace = GRACE if closes >= until - POLL_SECONDS else 0.0
            rest = closes + grace - time.monotonic()
            try:
                wait = max(0.0, min(rest, POLL_SECONDS))
                reply, is_reached = arrived.get(timeout=wait)
            except Empty:
                if rest <= POLL_SECONDS:
                    break
                failures = failures_in(self._job)
                for name in sorted(awaited & failures.keys()):
                    awaited.discard(name)
                    yield Reply(
                        name, failure=Failure(FailureCause.FAILED, failures[name])
                    )
                continue
            awaited.discard(reply.device)
            if is_reached:
                yield reply
            else:
                unreached.append(reply)
        # When a job ends, its sites are notified first, and then calls fail as if sites
        # were unreachable. So wait before reporting a site as unreachable.
        while unreached and not collab.is_aborted and left() > 0:
            time.sleep(POLL_SECONDS)
            if {reply.device for reply in unreached} <= failures_in(self._job).keys():
                break
        if collab.is_aborted:
            raise RunAborted("the job was aborted during an exchange")
        failures = failures_in(self._job)
        for reply in unreached:
            if reply.device in failures:
                failure = Failure(FailureCause.FAILED, failures[reply.device])
                reply = reply._replace(failure=failure)
            yield reply

    def _begin(
        self,
        call: Callable[[Any, str], Any],
        name: str,
        timeout: float,
        arrived: Arrivals,
    ) -> None:
        # One site per group: a group ends only when all of its sites have answered.
        group = collab.get_clients([name])(blocking=False, timeout=timeout)
        number = self._count = self._count + 1
        self._open[name][number] = time.monotonic() + timeout + DRIPPING
        results = call(group, name)

        def drain() -> None:
            try:
                for _, result in results:
                    arrived.put((_reply(name, result), True))
                for error in dict(results.failures).values():
                    arrived.put((Reply(name, failure=_failure(error)), False))
            except Exception as error:
                # An answer that Collab cannot decode is a failure of its site.
                arrived.put((Reply(name, failure=_failure(error)), True))
            finally:
                del self._open[name][number]

        threading.Thread(target=drain, daemon=True).start()

    def _drop_dripping(self) -> None:
        """Log sites as failed that still send an answer long after its timeout."""
        current = time.monotonic()
        for name, calls in self._open.items():
            if any(until < current for until in list(calls.values())):
                note_failure(self._job, name, DRIPS)


class Collab:
    """The transport between a job's server and its sites.

    Args:
        calls: calls of the job's sites.
        needed: bytes of the largest message that sites must accept.
    """

    def __init__(self, calls: Calls, needed: int) -> None:
        self._calls, self._needed = calls, needed

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        """Request enrolments, and yield them until time is up.

        Raises:
            RunAborted: if the job was aborted.
        """

        def call(group: Any, name: str) -> Any:
            return group.enrol(self._needed)

        return self._calls.make(call, names, left)

    def exchange(
        self, messages: Mapping[str, bytes], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Send messages, and yield replies as they arrive until time is up.

        Raises:
            RunAborted: if the job was aborted.
        """

        def call(group: Any, name: str) -> Any:
            return group.answer(messages[name])

        return self._calls.make(call, messages, left)


def _reply(name: str, result: Any) -> Reply:
    if type(result) is bytes:
        return Reply(name, result)
    if type(result) is str:
        return Reply(name, failure=Failure.decode(result))
    reason = f"sent a {type(result).__name__} instead of bytes"
    return Reply(name, failure=Failure(FailureCause.FAILED, reason))


def _failure(error: Exception) -> Failure:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, TimeoutError):
        return NO_ANSWER
    reason = f"could not be reached: {str(cause)[:LONGEST]}"
    return Failure(FailureCause.UNREACHED, reason)
