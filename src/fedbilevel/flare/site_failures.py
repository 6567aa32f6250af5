"""The failed sites of a job, in a file of the job directory at the server.

NVIDIA FLARE ends a whole job when one site reports that its worker process died. A
component of the server logs the site instead, and the job continues with the others.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.private.defs import (
    CellChannel,
    CellChannelTopic,
    CellMessageHeaderKeys,
    JobFailureMsgKey,
)

from fedbilevel.flare.abort_log import record_aborts
from fedbilevel.flare.site_events import distrust_sites, refuse_between_sites

FAILURES = "site_failures.jsonl"
"""File of a job directory at the server: a line for each failed site, with the reason.

Both the server's process and the job's write to it. A line is appended by a single
write, which needs no lock."""
BEGUN, OVER = "begun", "over"
"""Files of a job directory at the server, created before the first round and after the
last."""
JOBS = "fedbilevel-"
"""Prefix of this package's jobs; NVIDIA FLARE handles failures of all other jobs."""
WORKER_DIED = "its worker process ended"
NOT_BEGUN = "its worker process did not begin"


def failures_in(job: Path) -> Mapping[str, str]:
    """Return the reason for each failed site of a job, by name.

    Args:
        job: job directory at the server.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> note_failure(directory, "site-3", "its worker process ended")
        >>> failures_in(directory)
        {'site-3': 'its worker process ended'}
    """
    try:
        lines = (job / FAILURES).read_text().splitlines()
    except FileNotFoundError:
        return {}
    reasons: dict[str, str] = {}
    for line in lines:
        # A line that is being written is read in the next call.
        with suppress(ValueError):
            site, reason = json.loads(line)
            reasons.setdefault(site, reason)
    return reasons


def note_failure(job: Path, site: str, reason: str) -> None:
    """Log the failure of a site; only its first failure in a job is logged."""
    if site in failures_in(job):
        return
    with (job / FAILURES).open("ab", buffering=0) as lines:
        lines.write(f"{json.dumps([site, reason])}\n".encode())


class SiteFailures(FLComponent):  # type: ignore[misc]
    """A server component that lets a job continue when a site's worker dies.

    `prepare` adds it to the components in `local/resources.json` of a server. A job
    continues while at least `min_clients` sites run it. Workers that end because the
    job itself ends are not failures.
    """

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Register the handler of failure reports when the server starts."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            distrust_sites(fl_ctx.get_engine().run_manager.handlers)
        elif event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            server, runner = engine.server, engine.job_runner
            record_aborts(server)
            runner._stop_run = _marking(runner._stop_run, Path(engine.args.workspace))
            # This registration replaces the server's own.
            server.cell.register_request_cb(
                channel=CellChannel.SERVER_MAIN,
                topic=CellChannelTopic.REPORT_JOB_FAILURE,
                cb=lambda request: _handle_report(server, request),
            )
            server.cell.core_cell.set_message_interceptor(
                refuse_between_sites,
                lambda job: _is_foreign(runner.running_jobs.get(job)),
            )


class LateSites(FLComponent):  # type: ignore[misc]
    """A job component at the server that logs sites whose workers did not start.

    Collab ends the job with a message that names these sites. It also names the sites
    that have not started in an aborted job, which are not failures.
    """

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Read the sites from the message with which Collab ends a job."""
        if event_type == EventType.START_RUN:
            distrust_sites(fl_ctx.get_engine().run_manager.handlers)
        elif event_type == EventType.FATAL_SYSTEM_ERROR:
            reason = str(fl_ctx.get_prop(FLContextKey.EVENT_DATA))
            workspace, number = fl_ctx.get_workspace(), fl_ctx.get_job_id()
            job = Path(workspace.get_run_dir(number))
            aborted = fl_ctx.get_run_abort_signal().triggered
            if not aborted and not (job / OVER).exists():
                for site in late_sites(reason):
                    note_failure(job, site, NOT_BEGUN)
            # All other sites end their workers now, which is not a failure.
            (job / OVER).touch()


def late_sites(reason: str) -> list[str]:
    """Return the sites that did not start, from the message that ended their job.

    Example:
        >>> late_sites("failed to sync clients ['site-1', 'site-3']")
        ['site-1', 'site-3']
    """
    named = re.fullmatch(r"failed to (?:sync|set up) clients \[(.*)\]", reason)
    return [] if named is None else re.findall(r"'([^']+)'", named[1])


def _marking(stop_run: Callable[..., Any], workspace: Path) -> Callable[..., Any]:
    """Return a `stop_run` that first marks the job as over."""

    def stop(job_id: str, fl_ctx: Any) -> Any:
        with suppress(OSError):  # The job may never have been deployed here.
            (workspace / job_id / OVER).touch()
        return stop_run(job_id, fl_ctx)

    return stop


def _handle_report(server: Any, request: Any) -> Any:
    """Handle a site's report that its worker of a job has ended."""
    # The token is authenticated; the name in the report is not.
    token = request.get_header(CellMessageHeaderKeys.TOKEN)
    client = server.client_manager.clients.get(token)
    report = request.payload if isinstance(request.payload, dict) else {}
    job = report.get(JobFailureMsgKey.JOB_ID)
    if client is None or not _outlives(server.engine, job, client.name):
        return server.process_job_failure(request)
    server.engine.notify_dead_job(job, client.name, WORKER_DIED)
    server.engine.job_runner.resolve_client_outcome(job, client.name)
    return make_reply(ReturnCode.OK, "", None)


def _outlives(engine: Any, job: Any, site: str) -> bool:
    """Log the failure of a site; return whether its job continues."""
    runner = engine.job_runner
    running, process = runner.running_jobs.get(job), engine.run_processes.get(job)
    if running is None or process is None or not _is_ours(running):
        return False
    # When a job ends, its sites end their workers: that is not a failure.
    if not runner.is_client_outcome_pending(job, site):
        return False
    directory = Path(engine.args.workspace) / job
    if (directory / OVER).exists():
        return False
    note_failure(directory, site, WORKER_DIED)
    participants = process[RunProcessKey.PARTICIPANTS].values()
    names = {client.name for client in participants} - set(failures_in(directory))
    # Before its first round a job waits for all sites to start, until a timeout.
    return (directory / BEGUN).exists() and len(names) >= int(running.min_sites)


def _is_foreign(job: Any) -> bool:
    return job is not None and not _is_ours(job)


def _is_ours(job: Any) -> bool:
    return str(job.meta.get("name", "")).startswith(JOBS)
