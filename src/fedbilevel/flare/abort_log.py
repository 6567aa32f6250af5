"""The server's record of aborted jobs: which administrator requested it, and when.

NVIDIA FLARE gives a job the status `FINISHED:ABORTED` if an administrator aborts it,
but also if a site reports certain failures. Only a recorded request ends a run; after a
failure of a site its submitter resumes it.
"""

import logging
from datetime import UTC, datetime
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.reg import CommandFilter
from nvflare.private.fed.server.job_cmds import JobCommandModule

from fedbilevel.flare.job_state import ABORT, Abort, JobState

logger = logging.getLogger(__name__)


class AbortLog(CommandFilter):  # type: ignore[misc]
    """A filter of administrators' commands that records aborts in the job's metadata.

    It runs after authentication and authorisation, and before the command.
    """

    def pre_command(self, conn: Any, args: list[str]) -> bool:
        """Record a command that aborts a job; return True, so that it is executed."""
        if args[0] == AdminCommandNames.ABORT_JOB:
            try:
                self._record(conn)
            except Exception:
                # The abort matters more than its record.
                logger.exception("The abort of a job could not be recorded.")
        return True

    def _record(self, conn: Any) -> None:
        engine, job = conn.app_ctx, conn.get_prop(JobCommandModule.JOB)
        state = JobState.of(job.meta)
        if state.abort is not None or state.status.startswith("FINISHED"):
            return
        user = conn.get_prop(ConnProps.USER_NAME, "an unknown user")
        time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        with engine.new_context() as context:
            entry = {ABORT: Abort(user, time)}
            engine.job_def_manager.update_meta(job.job_id, entry, context)


def record_aborts(server: Any) -> None:
    """Record the aborts of jobs at a server, which has no administrators yet.

    Args:
        server: NVIDIA FLARE's server, before `set_admin_server`.
    """
    set_admin_server = server.set_admin_server

    def set_with_log(admin_server: Any) -> None:
        admin_server.cmd_reg.add_filter(AbortLog())
        set_admin_server(admin_server)

    server.set_admin_server = set_with_log
