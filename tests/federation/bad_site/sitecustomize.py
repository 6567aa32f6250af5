"""The misdeeds of bad sites, run by Python if this directory is on its path.

A file named by an environment variable has the misdeed of each site, by name. It
happens in the process that NVIDIA FLARE starts for a job at a site.
"""

import json
import os
import sys
import time
from pathlib import Path

DEEDS = "FEDBILEVEL_TEST_DEEDS"
HUGE = 1_200_000_000


def _on_task(deed):
    """Replace the answers of a site by its misdeed."""
    from fedbilevel.flare.collab_site import CollabSite

    honest = CollabSite._ask
    tasks: list[bytes] = []

    def _ask(self, message):
        tasks.append(message)
        return deed(len(tasks), lambda: honest(self, message))

    CollabSite._ask = _ask  # type: ignore[method-assign]


def _exit_at(task, code):
    def deed(number, honest):
        if number >= task:
            os._exit(code)
        return honest()

    return lambda: _on_task(deed)


def _hang(number, honest):
    time.sleep(1e6)


def _huge(number, honest):
    return bytes(HUGE) if number > 2 else honest()


def _fire(number, honest):
    """Send the server and a site an event that ends a job, at every task."""
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FedEventHeader
    from nvflare.apis.shareable import Shareable
    from nvflare.collab import collab
    from nvflare.widgets.fed_event import FED_EVENT_TOPIC

    event = Shareable()
    event.set_header(FedEventHeader.EVENT_TYPE, EventType.FATAL_SYSTEM_ERROR)
    event.set_header(FedEventHeader.TIMESTAMP, time.time())
    context = collab.fl_ctx
    engine = context.get_engine()
    engine.fire_and_forget_aux_request(FED_EVENT_TOPIC, event, context)
    if number > 1:
        engine.send_aux_request(["east"], FED_EVENT_TOPIC, event, 2.0, context, True)
    return honest()


def _declare():
    """Declare replies of 2 GB from the third task on, and send nothing."""
    from nvflare.fuel.f3.streaming import blob_streamer
    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

    answered: list[int] = []
    send = blob_streamer.BlobStreamer.send

    def lie(self, channel, topic, target, message, secure, optional, reliable=None):
        if len(answered) <= 2:
            return send(
                self, channel, topic, target, message, secure, optional, reliable
            )
        # For any other encoding the receiver allocates the declared size.
        message.headers[StreamHeaderKey.PAYLOAD_ENCODING] = "bytes"
        first = blob_streamer.BlobStream(b"x" * 10, message.headers)
        first.get_size = lambda: 2_000_000_000
        return self.byte_streamer.send(
            channel,
            topic,
            target,
            message.headers,
            first,
            blob_streamer.STREAM_TYPE_BLOB,
            secure=secure,
            optional=optional,
            reliable=reliable,
        )

    blob_streamer.BlobStreamer.send = lie

    def count(number, honest):
        answer = honest()
        answered.append(number)
        return answer

    _on_task(count)


WORKER = {
    "exit before the first task": lambda: os._exit(1),
    "hang before the first task": lambda: time.sleep(1e6),
    "exit at the first task": _exit_at(1, 1),
    "exit at the fifth task": _exit_at(5, 1),
    "leave at the first task": _exit_at(1, 0),
    "hang at the first task": lambda: _on_task(_hang),
    "send an event that ends a job": lambda: _on_task(_fire),
    "send a huge reply": lambda: _on_task(_huge),
    "declare a huge reply": _declare,
}


def _misbehave():
    site = Path(os.environ.get("FEDBILEVEL_KIT", "")).name
    file = Path(os.environ.get(DEEDS, ""))
    deed = json.loads(file.read_text()).get(site) if file.is_file() else None
    if deed and any("worker_process" in token for token in sys.orig_argv):
        WORKER[deed]()


_misbehave()
