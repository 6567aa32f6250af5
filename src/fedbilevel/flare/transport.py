"""The Collab API of NVIDIA FLARE as a transport."""

from collections.abc import Iterator, Sequence
from typing import Any

from nvflare.collab import collab

from fedbilevel.engines.federation.transport import Reply

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
        self, message: bytes, to: Sequence[str], timeout: float
    ) -> Iterator[Reply]:
        """Send a message, and yield replies as they arrive, until time is up."""
        present = {proxy.name for proxy in collab.clients}
        for name in to:
            if name not in present:
                yield Reply(name, failure="was not connected when the job began")
        asked = [name for name in to if name in present]
        if not asked:
            return
        # As they arrive, and none is kept here.
        group = collab.get_clients(asked)(blocking=False, timeout=timeout)
        results = group.answer(message)
        for name, found in results:
            yield _reply(name, found)
        for name, error in dict(results.failures).items():
            yield Reply(name, failure=_words(error))


def _reply(name: str, found: Any) -> Reply:
    if type(found) is bytes:
        return Reply(name, found)
    if type(found) is str:
        return Reply(name, failure=found[:WORDS])
    return Reply(name, failure=f"sent a {type(found).__name__}")


def _words(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, TimeoutError):
        return "did not answer in time"
    return f"could not be reached: {str(cause)[:WORDS]}"
