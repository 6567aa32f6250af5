"""Requests of an administrator to the server, with reconnection."""

import io
import json
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, TypeVar

from fedbilevel.flare.job_state import JobState

Answer = TypeVar("Answer")

SECONDS = 10.0
"""Timeout for a connection to the server."""
GONE = "FINISHED:UNKNOWN"
"""Status of a job that the server does not know."""
REFUSED_SECONDS = 600.0
"""Seconds since the last login in which a refused login is retried: with a wrong clock,
a certificate may seem not valid yet."""
STALE = 35.0
"""Seconds without a heartbeat after which a site counts as disconnected; it sends one
every 10 s."""


class NotRunningError(RuntimeError):
    """The server does not run the job: it has not begun, has ended, or is lost."""


class NoAnswerError(ConnectionError):
    """The server did not answer a request.

    Args:
        kit: directory of the administrator's startup kit.
        cause: error of the request.

    Attributes:
        reason: cause and place, for a message that has its own cure.

    Example:
        >>> raise NoAnswerError(Path("kits/admin"), OSError("connection refused"))
        Traceback (most recent call last):
        ...
        fedbilevel.flare.administrator.NoAnswerError: The server of kits/admin did not
        answer: connection refused. Start the server, or correct its address in
        kits/admin/startup/fed_admin.json.
    """

    def __init__(self, kit: Path, cause: Exception) -> None:
        text = str(cause).strip(". ") or type(cause).__name__
        self.reason = f"the server of {kit} did not answer: {text}"
        super().__init__(
            f"{self.reason[0].upper()}{self.reason[1:]}. Start the server, or correct "
            f"its address in {kit / 'startup' / 'fed_admin.json'}."
        )


def reason_of(error: Exception) -> str:
    """Return cause and place of a request without an answer, without the cure.

    Example:
        >>> reason_of(NoAnswerError(Path("admin"), OSError("connection refused")))
        'the server of admin did not answer: connection refused'
        >>> reason_of(ConnectionError("connection reset"))
        'connection reset'
    """
    return error.reason if isinstance(error, NoAnswerError) else str(error)


def open_session(kit: Path) -> Any:
    """Return nvflare's `Session` of an administrator.

    Args:
        kit: directory of the administrator's startup kit.

    Raises:
        ValueError: if the directory is not such a kit.

    Example:
        >>> open_session(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is not a startup kit of an administrator:
        startup/fed_admin.json is missing. Give the directory that nvflare provision
        created for an administrator.
    """
    from nvflare.fuel.flare_api.flare_api import Session

    session = Session(username(kit), str(kit), secure_mode=True)
    try:
        # The session prints its progress.
        with redirect_stdout(io.StringIO()):
            session.try_connect(SECONDS)
    except BaseException:
        # After Ctrl-C, too, open threads would keep the program from ending.
        session.api.close()
        raise
    return session


def username(kit: Path) -> str:
    """Return the administrator's name in a startup kit.

    Raises:
        ValueError: if the directory is not such a kit.

    Example:
        >>> username(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is not a startup kit of an administrator:
        startup/fed_admin.json is missing. Give the directory that nvflare provision
        created for an administrator.
    """
    file = kit / "startup" / "fed_admin.json"
    if not file.is_file():
        raise ValueError(
            f"{kit} is not a startup kit of an administrator: startup/fed_admin.json "
            "is missing. Give the directory that nvflare provision created for an "
            "administrator."
        )
    return str(json.loads(file.read_text())["admin"]["username"])


class Administrator:
    """A connection to the server; each request reconnects if necessary.

    Args:
        kit: directory of the administrator's startup kit.

    Raises:
        ValueError: if the directory is not such a kit.

    Example:
        >>> Administrator(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is not a startup kit of an administrator:
        startup/fed_admin.json is missing. Give the directory that nvflare provision
        created for an administrator.
    """

    def __init__(self, kit: Path) -> None:
        username(kit)
        self._kit = kit
        self._session: Any = None
        self._login: float | None = None

    def connected(self) -> set[str]:
        """Return the connected sites.

        Raises:
            ConnectionError: if the server does not answer. All other methods raise it
                as well.
        """
        sites = self._request(lambda session: session.get_system_info().client_info)
        # All times are of the server's clock, which may be wrong.
        heard = {site.name: site.last_connect_time or 0.0 for site in sites}
        newest = max(heard.values(), default=0.0)
        return {name for name, when in heard.items() if when > newest - STALE}

    def running(self, job: str) -> set[str]:
        """Return the sites that run a job."""
        statuses = self._request(lambda session: session.get_client_job_status()) or []
        return {
            status["client_name"] for status in statuses if status.get("job_id") == job
        }

    def submit(self, directory: Path) -> str:
        """Submit a job; return its id."""
        return self._request(lambda session: str(session.submit_job(str(directory))))

    def state(self, job: str) -> JobState:
        """Return the state of a job."""
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        def read_meta(session: Any) -> JobState:
            try:
                return JobState.of(session.get_job_meta(job))
            except JobNotFound:
                return JobState(GONE)

        return self._request(read_meta)

    def deployment(self, job: str) -> list[str]:
        """Return NVIDIA FLARE's deployment detail of a job, a line for each site."""
        meta = self._request(lambda session: session.get_job_meta(job))
        return list(map(str, meta.get("job_deploy_detail") or []))

    def ask(
        self, job: str, topic: str, request: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return a running job's answer to a request; None if it does not answer.

        Raises:
            NotRunningError: if the server does not run the job.
        """
        from nvflare.fuel.flare_api.api_spec import (
            InternalError,
            JobNotFound,
            JobNotRunning,
            NoReply,
        )

        def send(session: Any) -> dict[str, Any] | None:
            try:
                answer: dict[str, Any] = session.do_app_command(job, topic, request)
            # The job is about to begin, or to end.
            except (InternalError, NoReply):
                return None
            except (JobNotFound, JobNotRunning) as error:
                raise NotRunningError(job) from error
            return answer

        return self._request(send)

    def abort(self, job: str) -> None:
        """Abort a job, if the server can be reached."""
        with suppress(ConnectionError):
            self._request(lambda session: session.abort_job(job))

    def results(self, job: str, directory: Path) -> Path:
        """Download the results of a finished job; return their directory."""
        return self._request(
            lambda session: Path(session.download_job_result(job, str(directory)))
        )

    def close(self) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if session is not None:
            # The server may be unreachable.
            with suppress(Exception):
                session.close()

    def __enter__(self) -> "Administrator":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _request(self, call: Callable[[Any], Answer]) -> Answer:
        from nvflare.fuel.flare_api.api_spec import (
            AuthenticationError,
            AuthorizationError,
            InvalidJobDefinition,
        )

        try:
            # The session prints its progress.
            with redirect_stdout(io.StringIO()):
                if self._session is None:
                    self._session = open_session(self._kit)
                answer = call(self._session)
            self._login = time.monotonic()
            return answer
        except NotRunningError:
            raise
        # nvflare raises many types of exceptions; few of them should end a run.
        except Exception as error:
            refused = isinstance(error, AuthenticationError) and not self._may_return()
            if refused or isinstance(error, AuthorizationError | InvalidJobDefinition):
                # A retry would be refused as well.
                raise PermissionError(
                    f"The server of {self._kit} refused the request: "
                    f"{str(error).rstrip('. ')}. Use the kit of an administrator of "
                    "this federation whose role permits the request."
                ) from error
            self.close()
            raise NoAnswerError(self._kit, error) from error

    def _may_return(self) -> bool:
        """Return whether the last login was in the last 600 seconds."""
        login = self._login
        return login is not None and time.monotonic() - login < REFUSED_SECONDS
