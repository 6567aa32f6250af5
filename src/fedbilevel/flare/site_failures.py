"""Sites whose worker process of a job has died, in a file of the job at the server.

NVIDIA FLARE ends a whole job when one site reports that its worker died. A component of
the server writes the site down instead, and the job continues with the others.
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

from fedbilevel.flare.site_events import between_sites, distrust_sites

FAILURES = "site_failures.jsonl"
"""The file of a job at the server: a line for each site that failed, with the reason.

Both the server's process and the job's write to it. A line that is appended by one call
needs no lock, and takes the place of no other."""
BEGUN, OVER = "begun", "over"
"""Files of a job at the server, made before its first round and after its last."""
JOBS = "fedbilevel-"
"""How the names of this package's jobs begin; others' end as NVIDIA FLARE has it."""
WORKER_DIED = "its worker process ended"
NOT_BEGUN = "its worker process did not begin"


def failures_in(job: Path) -> Mapping[str, str]:
    """Return why sites of a job have failed, by name.

    Args:
        job: the directory of the job at the server.

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
    found: dict[str, str] = {}
    for line in lines:
        # One that is being written is read the next time.
        with suppress(ValueError):
            site, reason = json.loads(line)
            found.setdefault(site, reason)
    return found


def note_failure(job: Path, site: str, reason: str) -> None:
    """Write down that a site of a job has failed; its first reason stays.

    Example:
        >>> note_failure.__name__
        'note_failure'
    """
    if site in failures_in(job):
        return
    with (job / FAILURES).open("ab", buffering=0) as lines:
        lines.write(f"{json.dumps([site, reason])}\n".encode())


class SiteFailures(FLComponent):  # type: ignore[misc]
    """Keeps one site from ending a job at the server that has enough others.

    `prepare` of a server adds it to the components in `local/resources.json`. A job has
    enough sites while no fewer than its `min_clients` run it. Who ends their workers
    since the job itself is ended has not failed.

    Example:
        >>> SiteFailures.__name__
        'SiteFailures'
    """

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Take over reports of failed sites when the server starts."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            distrust_sites(fl_ctx.get_engine().run_manager.handlers)
        elif event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            server, runner = engine.server, engine.job_runner
            runner._stop_run = _marking(runner._stop_run, Path(engine.args.workspace))
            # A later registration takes the place of the server's own.
            server.cell.register_request_cb(
                channel=CellChannel.SERVER_MAIN,
                topic=CellChannelTopic.REPORT_JOB_FAILURE,
                cb=lambda request: _handle_report(server, request),
            )
            server.cell.core_cell.set_message_interceptor(
                between_sites, lambda job: _is_anothers(runner.running_jobs.get(job))
            )


class LateSites(FLComponent):  # type: ignore[misc]
    """Writes down the sites whose workers did not begin, for which a job was ended.

    A component of a job at the server: Collab ends the job with a sentence that names
    them. It names those that have not begun of an aborted job, too, which did nothing
    wrong.

    Example:
        >>> LateSites.__name__
        'LateSites'
    """

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Read the sentence by which a job is ended."""
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
            # All others end their workers now, and have not failed.
            (job / OVER).touch()


def late_sites(reason: str) -> list[str]:
    """Return the sites that a job waited for in vain, by the reason of its end.

    Example:
        >>> late_sites("failed to sync clients ['site-1', 'site-3']")
        ['site-1', 'site-3']
    """
    named = re.fullmatch(r"failed to (?:sync|set up) clients \[(.*)\]", reason)
    return [] if named is None else re.findall(r"'([^']+)'", named[1])


def _marking(stop_run: Callable[..., Any], workspace: Path) -> Callable[..., Any]:
    """Return what ends a job, but first marks it as over: sites are told before."""

    def stop(job_id: str, fl_ctx: Any) -> Any:
        with suppress(OSError):  # of a job that was never deployed here
            (workspace / job_id / OVER).touch()
        return stop_run(job_id, fl_ctx)

    return stop


def _handle_report(server: Any, request: Any) -> Any:
    """Answer a site's report that its worker of a job has ended."""
    # The server vouches for the token, whatever name the report gives.
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
    """Write down that a site failed; return whether its job continues."""
    runner = engine.job_runner
    running, process = runner.running_jobs.get(job), engine.run_processes.get(job)
    if running is None or process is None or not _is_ours(running):
        return False
    # Of a job that is being ended sites are told to end theirs: none has failed.
    if not runner.is_client_outcome_pending(job, site):
        return False
    directory = Path(engine.args.workspace) / job
    if (directory / OVER).exists():
        return False
    note_failure(directory, site, WORKER_DIED)
    participants = process[RunProcessKey.PARTICIPANTS].values()
    left = {client.name for client in participants} - set(failures_in(directory))
    # Before its rounds a job waits for all of its sites to begin, and would wait long.
    return (directory / BEGUN).exists() and len(left) >= int(running.min_sites)


def _is_anothers(job: Any) -> bool:
    return job is not None and not _is_ours(job)


def _is_ours(job: Any) -> bool:
    return str(job.meta.get("name", "")).startswith(JOBS)
