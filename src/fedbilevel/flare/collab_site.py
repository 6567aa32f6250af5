"""The site process of a job: pass the server's tasks to a worker process."""

from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from fedbilevel.deployment.gc_control import GarbageCollector
from fedbilevel.federation.computation_timeout import computation_timeout
from fedbilevel.federation.transport import ENROL, Failure, FailureCause, RefusedError
from fedbilevel.federation.worker.child import Answer
from fedbilevel.federation.worker.worker import Worker, WorkerError
from fedbilevel.flare.message_limits import check_limit
from fedbilevel.flare.run_directory import RUNS, run_directory_of

LOCAL = "local"
"""Directory of a kit with the files of its operator."""
SERVER = "server"
"""Collab's name of the server."""


class CollabSite:
    """The Collab object of a site.

    Args:
        run_name: name of the run.
        seconds: timeout after which a computation is killed. It is the job's, so the
            rule `most_seconds` of the site bounds it.
    """

    def __init__(self, run_name: str, seconds: float) -> None:
        leave_messages_unprinted()
        self.run_name, self.seconds = run_name, seconds
        self._worker: Worker | None = None
        self._garbage: GarbageCollector | None = None

    @collab.publish
    def enrol(self, needed: int) -> bytes | str:
        """Return the site's enrolment, or its failure as text.

        Args:
            needed: bytes of the largest message that the site must accept.
        """
        if reason := check_limit(needed):
            return Failure(FailureCause.UNABLE, f"could not begin: {reason}").encode()
        return self._ask(ENROL)

    @collab.publish
    def answer(self, message: bytes) -> bytes | str:
        """Return the answer to a task, or the failure as text."""
        return self._ask(message)

    @collab.final
    def close(self) -> None:
        """Kill the worker process."""
        if self._worker is not None:
            self._worker.close()

    def _ask(self, message: bytes) -> bytes | str:
        # Collab lets all sites of a job call this method.
        if collab.caller != SERVER:
            return RefusedError("only the server may call a site").failure.encode()
        if self._worker is None:
            workspace, job = collab.workspace, collab.fl_ctx.get_job_id()
            local = Path(workspace.get_root_dir()) / LOCAL
            self.seconds = computation_timeout(local, self.seconds)
            self._worker = Worker(
                _build_answer,
                collab.site_name,
                run_directory_of(self.run_name, workspace, job),
                Path(workspace.get_app_config_dir(job)),
                Path(workspace.get_app_custom_dir(job)),
                Path(workspace.get_root_dir()),
                Path(workspace.get_root_dir()) / RUNS,
            )
        if self._garbage is None:
            self._garbage = GarbageCollector()
        self._garbage.collect()
        try:
            return self._worker.ask(message, self.seconds)
        except WorkerError as error:
            if self._worker.is_closed:
                # The job has ended, so this is not a failure of the site.
                raise
            # An exception's message may contain data, and stays in the site's console:
            # NVIDIA FLARE's logs may be sent to the server.
            cause = FailureCause.UNABLE if error.is_final else FailureCause.FAILED
            reason = f"could not answer: {error.summary}; see the site's console.txt"
            return Failure(cause, reason).encode()


def leave_messages_unprinted() -> None:
    """Keep this process from formatting each received message as text.

    NVIDIA FLARE formats the bytes of a message for a debug line, even if the line is
    not logged: for 50 MB the text has 200 million characters and takes 0.5 s, in which
    no other thread runs.

    Example:
        >>> leave_messages_unprinted()
        >>> len(str(ConsumableBufferList([bytes(10**6)]))) < 100
        True
    """
    ConsumableBufferList.__repr__ = object.__repr__


def _build_answer(*arguments: Any) -> Answer:
    # Imported here, because only the worker process needs these modules.
    from fedbilevel.deployment.site_computation import build_answer

    return build_answer(*arguments)
