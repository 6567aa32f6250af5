"""Messages by which one site could end a job, stop the server, or end others' workers.

A site may send NVIDIA FLARE's server an event of any type, which the server then fires
among its own components: `_fatal_system_error` ends a job, `_system_end` stops the
server from starting any. A result with the return code UNSAFE_JOB ends a job as well.
And the server forwards what one site sends to another, which obeys it.
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
"""How types of events begin that NVIDIA FLARE means to cross, such as metrics."""


def distrust_sites(handlers: list[Any]) -> None:
    """Let no site fire an event of the server's own, or end a job by a return code.

    To be called before the handlers see the event at which they begin.

    Args:
        handlers: the components of a server's process that hear of events.

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
            # Such a result is then one that failed, of a site that is named.
            handler.ABORT_RETURN_CODES = []


def _guarded(receive: Any) -> Any:
    def guarded(topic: str, request: Any, fl_ctx: Any) -> Any:
        name = request.get_header(FedEventHeader.EVENT_TYPE, None)
        if not isinstance(name, str) or not name.startswith(FEDERATED):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        return receive(topic, request, fl_ctx)

    return guarded


def between_sites(message: Any, is_anothers: Callable[[str], bool]) -> Any:
    """Return a refusal of a message that one site sends to another; None of others.

    NVIDIA FLARE has checked by then that a message comes from whom it says.

    Args:
        message: on its way through the server.
        is_anothers: whether a job is one of another package, whose sites may talk.

    Example:
        >>> from nvflare.fuel.f3.message import Message
        >>> route = {
        ...     MessageHeaderKey.ORIGIN: "west.7",
        ...     MessageHeaderKey.DESTINATION: "east.7",
        ... }
        >>> between_sites(Message(route), lambda job: False) is None
        False
    """
    header = message.get_header
    origin = FQCN.split(header(MessageHeaderKey.ORIGIN) or "")
    destination = FQCN.split(header(MessageHeaderKey.DESTINATION) or "")
    sites = {origin[0], destination[0]}
    if FQCN.ROOT_SERVER in sites or len(sites) == 1:
        return None
    if len(destination) > 1 and is_anothers(destination[1]):
        return None
    error = "sites do not talk to each other"
    return make_cell_reply(CellReturnCode.UNAUTHENTICATED, error, None)
