"""The Collab API of NVIDIA FLARE as a transport."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.engines.federation.gathering import NO_ANSWER
from fedbilevel.engines.federation.transport import Reply

GRACE = 1.0
"""Seconds after a timeout in which the software says why there was no answer."""
LOOKS_EVERY = 0.05
"""Seconds between two looks at whether the job is aborted."""
WORDS = 300
"""The most that is kept of what a site says of a failure."""


class Collab:
    """Carries messages between a job's server and its sites.

    To be used within the main function of a Collab server. Names are those of the
    sites' certificates.

    Example:
        >>> Collab.__name__
        'Collab'
    """

    def exchange(
        self, message: bytes, to: Sequence[str], left: Callable[[], float]
    ) -> Iterator[Reply]:
        """Send a message, and yield replies as they arrive, until time is up.

        Raises:
            RunAborted: the job has been, meanwhile.
        """
        present = {proxy.name for proxy in collab.clients}
        for name in to:
            if name not in present:
                yield Reply(name, failure="was not connected when the job began")
        asked = [name for name in to if name in present]
        if not asked:
            return
        # As they arrive, and none is kept here.
        group = collab.get_clients(asked)(blocking=False, timeout=left())
        arrived: SimpleQueue[Reply | list[Reply]] = SimpleQueue()
        threading.Thread(
            target=_drain, args=(group.answer(message), arrived), daemon=True
        ).start()
        # Its own clock begins anew with every piece of a message, however slow.
        until = time.monotonic() + left()
        unreached: list[Reply] = []
        while True:
            closes = time.monotonic() + left()
            # Not where it closes early, as enough have answered.
            grace = GRACE if closes >= until - LOOKS_EVERY else 0.0
            try:
                reply = arrived.get(timeout=max(0.0, closes + grace - time.monotonic()))
            except Empty:
                break
            if isinstance(reply, list):
                unreached = reply
                break
            yield reply
        # The end of a job is told to its sites first; at the server it then ends calls
        # as if sites had been late. So who cannot be reached is waited for as well.
        while unreached and not collab.is_aborted and left() > 0:
            time.sleep(LOOKS_EVERY)
        if collab.is_aborted:
            raise RunAborted("the job was aborted during an exchange")
        yield from unreached


def _drain(results: Any, arrived: "SimpleQueue[Reply | list[Reply]]") -> None:
    """Pass on results as they come, then all failures at once."""
    for name, found in results:
        arrived.put(_reply(name, found))
    failures = dict(results.failures).items()
    arrived.put([Reply(name, failure=_words(error)) for name, error in failures])


def _reply(name: str, found: Any) -> Reply:
    if type(found) is bytes:
        return Reply(name, found)
    if type(found) is str:
        return Reply(name, failure=found[:WORDS])
    return Reply(name, failure=f"sent a {type(found).__name__}")


def _words(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, TimeoutError):
        return NO_ANSWER
    return f"could not be reached: {str(cause)[:WORDS]}"
