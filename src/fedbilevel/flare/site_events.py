"""Events and return codes by which one site could end a job, or stop the server.

A site may send NVIDIA FLARE's server an event of any type, which the server then fires
among its own components: `_fatal_system_error` ends a job, `_system_end` stops the
server from starting any. A result with the return code UNSAFE_JOB ends a job as well.
"""

from typing import Any

from nvflare.apis.fl_constant import FedEventHeader, ReturnCode
from nvflare.apis.shareable import make_reply
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
