"""What runs at a site: it answers the server, and computes in a process of its own."""

from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from fedbilevel.deployment.gc_control import GarbageCollector
from fedbilevel.federation.transport import ENROL, Cause, Failure, RefusedError
from fedbilevel.federation.worker.child import Answer
from fedbilevel.federation.worker.worker import Worker, WorkerError
from fedbilevel.flare.message_limits import too_small
from fedbilevel.flare.run_directory import RUNS, run_directory_of

SERVER = "server"
"""What Collab calls the server of a job."""


class CollabSite:
    """The Collab object of a site.

    Args:
        run_name: the name of the run.
        seconds: after which a computation is held for hung, and ended.

    Example:
        >>> CollabSite("a1", seconds=600.0).run_name
        'a1'
    """

    def __init__(self, run_name: str, seconds: float) -> None:
        leave_messages_unprinted()
        self.run_name, self.seconds = run_name, seconds
        self._worker: Worker | None = None
        self._garbage: GarbageCollector | None = None

    @collab.publish
    def enrol(self, needed: int) -> bytes | str:
        """Return what the site tells of its data; text says why it cannot.

        Args:
            needed: bytes of the largest message that the site must take.
        """
        if reason := too_small(needed):
            return Failure(Cause.UNABLE, f"could not begin: {reason}").encode()
        return self._ask(ENROL)

    @collab.publish
    def answer(self, message: bytes) -> bytes | str:
        """Carry out a task; return what leaves the site, or in words why nothing."""
        return self._ask(message)

    @collab.final
    def close(self) -> None:
        """End the computation's process."""
        if self._worker is not None:
            self._worker.close()

    def _ask(self, message: bytes) -> bytes | str:
        # All of a job's sites could call: each other's data are none of their business.
        if collab.caller != SERVER:
            return RefusedError("only the server may ask").failure.encode()
        if self._worker is None:
            workspace, job = collab.workspace, collab.fl_ctx.get_job_id()
            self._worker = Worker(
                _answering,
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
                # Nothing of the site's own, but the end of the job.
                raise
            # What an exception says may be about data, and stays in the console: the
            # software's logs may be sent to the server.
            cause = Cause.UNABLE if error.is_final else Cause.FAILED
            words = f"could not answer: {error.summary}; its console says more"
            return Failure(cause, words).encode()


def leave_messages_unprinted() -> None:
    """Keep this process from writing out each message that comes as text.

    NVIDIA FLARE puts the bytes of a message into a line for debugging, and makes the
    line whether or not it is logged: for 50 MB it has 200 million characters and takes
    0.5 s, in which no other thread runs.

    Example:
        >>> leave_messages_unprinted()
        >>> len(str(ConsumableBufferList([bytes(10**6)]))) < 100
        True
    """
    ConsumableBufferList.__repr__ = object.__repr__


def _answering(*arguments: Any) -> Answer:
    # Here, as the process that waits for answers needs none of it.
    from fedbilevel.deployment.site_computation import answering

    return answering(*arguments)
