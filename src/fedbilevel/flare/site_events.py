"""Protection against sites that end jobs, stop the server or end other sites' workers.

A site may send NVIDIA FLARE's server an event of any type, which the server fires among
its own components: `_fatal_system_error` ends a job, `_system_end` keeps the server
from starting jobs. A result with the return code UNSAFE_JOB ends a job as well. The
server also forwards commands from one site to another, which executes them.
"""

from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import FedEventHeader, ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.fuel.f3.cellnet.core_cell import make_reply as make_cell_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.fed.server.server_runner import ServerRunner
from nvflare.widgets.fed_event import FedEventRunner

FEDERATED = "fed."
"""Prefix of event types that NVIDIA FLARE sends between processes, such as metrics."""


def distrust_sites(handlers: list[Any]) -> None:
    """Ignore a site's server events, and return codes by which it would end a job.

    Call this before the handlers receive their start event.

    Args:
        handlers: event handlers of a server's process.

    Example:
        >>> runner = FedEventRunner()
        >>> distrust_sites([runner])
        >>> from nvflare.apis.shareable import Shareable
        >>> event = Shareable()
        >>> event.set_header(FedEventHeader.EVENT_TYPE, "_fatal_system_error")
        >>> runner._receive("fed.event", event, None).get_return_code()
        'BAD_REQUEST_DATA'
    """
    for handler in handlers:
        if isinstance(handler, FedEventRunner):
            handler._receive = _guarded(handler._receive)
        elif isinstance(handler, ServerRunner):
            # The result then counts as a failure of the site.
            handler.ABORT_RETURN_CODES = []


def _guarded(receive: Any) -> Any:
    def guarded(topic: str, request: Any, fl_ctx: Any) -> Any:
        name = request.get_header(FedEventHeader.EVENT_TYPE, None)
        if not isinstance(name, str) or not name.startswith(FEDERATED):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        return receive(topic, request, fl_ctx)

    return guarded


def refuse_between_sites(message: Any, is_foreign: Callable[[str], bool]) -> Any:
    """Return a refusal if a message goes from one site to another, else None.

    NVIDIA FLARE has authenticated the sender of the message before.

    Args:
        message: message that the server forwards.
        is_foreign: function that returns whether a job belongs to another package,
            whose sites may exchange messages.

    Example:
        >>> from nvflare.fuel.f3.message import Message
        >>> route = {
        ...     MessageHeaderKey.ORIGIN: "west.7",
        ...     MessageHeaderKey.DESTINATION: "east.7",
        ... }
        >>> refuse_between_sites(Message(route), lambda job: False) is None
        False
    """
    header = message.get_header
    origin = FQCN.split(header(MessageHeaderKey.ORIGIN) or "")
    destination = FQCN.split(header(MessageHeaderKey.DESTINATION) or "")
    sites = {origin[0], destination[0]}
    if FQCN.ROOT_SERVER in sites or len(sites) == 1:
        return None
    if len(destination) > 1 and is_foreign(destination[1]):
        return None
    error = "messages between sites are not allowed"
    return make_cell_reply(CellReturnCode.UNAUTHENTICATED, error, None)
