"""A report of one site does not end a job, and the end of a job is no site's failure.

Nightly with separate server and site processes: `test_bad_sites`.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import (
    FedEventHeader,
    FLContextKey,
    ReturnCode,
    RunProcessKey,
)
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server.server_runner import ServerRunner
from nvflare.widgets.fed_event import ServerFedEventRunner

from fedbilevel.flare.site_failures import (
    BEGUN,
    WORKER_DIED,
    LateSites,
    SiteFailures,
    failures_in,
)

SITES = "east", "north", "west"
JOB = "7"


class Context(FLContext):  # type: ignore[misc]
    """The engine of one server process."""

    def __init__(self, engine: Any, job: Path | None = None) -> None:
        super().__init__()
        self.engine, self.job = engine, job
        self.signal = Signal()

    def get_engine(self, *_: Any) -> Any:
        return self.engine

    def get_workspace(self) -> Any:
        return SimpleNamespace(get_run_dir=lambda number: str(self.job))

    def get_run_abort_signal(self) -> Signal:
        return self.signal


def process(component: FLComponent, event: str) -> tuple[Any, ServerRunner]:
    """Start a server's process; return its receiver of site events and its runner.

    The component is the first handler, as if it were configured.
    """
    runner = object.__new__(ServerRunner)
    FLComponent.__init__(runner)
    handlers = [component, ServerFedEventRunner(), runner]
    receivers: list[Any] = []
    engine = SimpleNamespace(
        run_manager=SimpleNamespace(handlers=handlers),
        register_aux_message_handler=(
            lambda topic, message_handle_func: receivers.append(message_handle_func)
        ),
    )
    fire_event_to_components(event, handlers, Context(engine))
    (receive,) = receivers
    return receive, runner


@pytest.mark.parametrize(
    ("component", "event"),
    [
        (LateSites(), EventType.START_RUN),
        (SiteFailures(), EventType.SYSTEM_BOOTSTRAP),
    ],
    ids=["job", "server"],
)
def test_no_site_fires_the_servers_own_events(component, event):
    receive, _ = process(component, event)
    for name in (EventType.FATAL_SYSTEM_ERROR, EventType.SYSTEM_END, None, 7):
        response = Shareable()
        response.set_header(FedEventHeader.EVENT_TYPE, name)
        reply = receive(topic="fed.event", request=response, fl_ctx=None)
        assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA


def test_no_return_code_of_a_site_ends_a_job():
    _, runner = process(LateSites(), EventType.START_RUN)
    assert not runner.ABORT_RETURN_CODES


class Server:
    """The main process of a server that runs one job."""

    def __init__(self, workspace: Path) -> None:
        (workspace / JOB).mkdir()
        (workspace / JOB / BEGUN).touch()
        clients = {name: SimpleNamespace(name=name) for name in SITES}
        running = SimpleNamespace(meta={"name": "fedbilevel-a1"}, min_sites=2)
        self.job_runner = SimpleNamespace(
            running_jobs={JOB: running},
            is_client_outcome_pending=lambda job, site: True,
            resolve_client_outcome=lambda job, site: None,
            _stop_run=self._stop_run,
        )
        self.client_manager = SimpleNamespace(clients=clients)
        self.set_admin_server = lambda admin_server: None
        self.ended = False
        self.engine = SimpleNamespace(
            server=self,
            job_runner=self.job_runner,
            args=SimpleNamespace(workspace=str(workspace)),
            run_processes={JOB: {RunProcessKey.PARTICIPANTS: clients}},
            notify_dead_job=lambda job, site, reason: None,
        )
        core_cell = SimpleNamespace(set_message_interceptor=self._intercept)
        self.cell = SimpleNamespace(
            register_request_cb=self._register, core_cell=core_cell
        )
        SiteFailures().handle_event(EventType.SYSTEM_START, Context(self.engine))

    def _register(self, channel: str, topic: str, cb: Any) -> None:
        self._handle = cb

    def _intercept(self, check: Any, *arguments: Any) -> None:
        self.check = lambda message: check(message, *arguments)

    def report(self, site: str) -> None:
        """Send a site's report that its worker has ended."""
        request = SimpleNamespace(
            get_header={CellMessageHeaderKeys.TOKEN: site}.get,
            payload={JobFailureMsgKey.JOB_ID: JOB},
        )
        self._handle(request)

    def process_job_failure(self, request: Any) -> None:
        self.ended = True

    def _stop_run(self, job: str, fl_ctx: Any) -> None:
        # NVIDIA FLARE notifies the sites before it marks the job as aborted.
        for site in SITES:
            self.report(site)


def test_a_dead_worker_takes_out_its_own_site(tmp_path):
    server = Server(tmp_path)
    server.report("west")
    assert failures_in(tmp_path / JOB) == {"west": WORKER_DIED}
    assert not server.ended


def test_a_site_that_ends_an_ended_job_has_not_failed(tmp_path):
    server = Server(tmp_path)
    server.job_runner._stop_run(JOB, None)
    assert failures_in(tmp_path / JOB) == {}


@pytest.mark.parametrize("aborted", [True, False])
def test_sites_that_had_not_begun_when_a_job_was_aborted_are_not_late(
    tmp_path, aborted
):
    context = Context(engine=None, job=tmp_path)
    context.set_prop(FLContextKey.EVENT_DATA, "failed to sync clients ['west']")
    if aborted:
        context.signal.trigger(True)
    LateSites().handle_event(EventType.FATAL_SYSTEM_ERROR, context)
    assert set(failures_in(tmp_path)) == (set() if aborted else {"west"})


@pytest.mark.parametrize(
    ("origin", "destination", "passes"),
    [
        ("west", "server", True),
        ("west.7", "server.7", True),
        ("server.7", "east.7", True),
        ("west", "west.7", True),
        ("west.7", "east.7", False),
        ("west.7", "east", False),
        ("west", "east.unknown", False),
        ("west.8", "east.8", True),
    ],
)
def test_no_site_tells_another_what_to_do(tmp_path, origin, destination, passes):
    server = Server(tmp_path)
    anothers = SimpleNamespace(meta={"name": "swarm"}, min_sites=2)
    server.job_runner.running_jobs["8"] = anothers
    route = {
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.DESTINATION: destination,
    }
    assert (server.check(Message(route)) is None) == passes
