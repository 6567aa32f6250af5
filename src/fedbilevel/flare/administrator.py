"""An administrator asks the server of a federation, and outlives its absences."""

import io
import json
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")

SECONDS = 10.0
"""To wait for the server."""
GONE = "FINISHED:UNKNOWN"
"""The state of a job that the server does not know."""
PATIENCE = 600.0
"""Seconds for which who was let in before may be refused: a clock may be off, and to it
a certificate is not valid yet."""
STALE = 35.0
"""Seconds after which a site is held for gone: it sends a heartbeat every 10."""


class NotRunningError(RuntimeError):
    """A job is asked that the server does not run: not yet, not any more, or lost.

    Example:
        >>> str(NotRunningError("job 7"))
        'job 7'
    """


def open_session(kit: Path) -> Any:
    """Return nvflare's `Session` of an administrator with their server.

    Args:
        kit: the directory of the administrator's startup kit.

    Raises:
        ValueError: if it is none.

    Example:
        >>> open_session(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is no startup kit of an administrator: it has no
        startup/fed_admin.json.
    """
    from nvflare.fuel.flare_api.flare_api import Session

    session = Session(_username(kit), str(kit), secure_mode=True)
    try:
        # It prints that it connects.
        with redirect_stdout(io.StringIO()):
            session.try_connect(SECONDS)
    except BaseException:
        # A Ctrl-C too: threads of a connection would keep the program from ending.
        session.api.close()
        raise
    return session


def _username(kit: Path) -> str:
    file = kit / "startup" / "fed_admin.json"
    if not file.is_file():
        raise ValueError(
            f"{kit} is no startup kit of an administrator: it has no "
            "startup/fed_admin.json."
        )
    return str(json.loads(file.read_text())["admin"]["username"])


class Administrator:
    """Asks the server; a session that was lost is opened anew with the next question.

    Args:
        kit: the directory of the administrator's startup kit.

    Raises:
        ValueError: if it is none.

    Example:
        >>> Administrator(Path("nowhere"))
        Traceback (most recent call last):
        ...
        ValueError: nowhere is no startup kit of an administrator: it has no
        startup/fed_admin.json.
    """

    def __init__(self, kit: Path) -> None:
        _username(kit)
        self._kit = kit
        self._session: Any = None
        self._let_in: float | None = None

    def connected(self) -> set[str]:
        """Return the sites that the server has heard of lately.

        Raises:
            ConnectionError: if no server answers, and so do all the others.
        """
        found = self._asked(lambda session: session.get_system_info().client_info)
        # All by the server's clock, whatever it shows.
        heard = {site.name: site.last_connect_time or 0.0 for site in found}
        newest = max(heard.values(), default=0.0)
        return {name for name, when in heard.items() if when > newest - STALE}

    def running(self, job: str) -> set[str]:
        """Return the sites at which a job runs."""
        told = self._asked(lambda session: session.get_client_job_status()) or []
        return {one["client_name"] for one in told if one.get("job_id") == job}

    def submit(self, directory: Path) -> str:
        """Submit a job; return its number."""
        return self._asked(lambda session: str(session.submit_job(str(directory))))

    def status(self, job: str) -> str:
        """Return what the server's software calls the state of a job."""
        from nvflare.fuel.flare_api.api_spec import JobNotFound

        def question(session: Any) -> str:
            try:
                return str(session.get_job_status(job))
            except JobNotFound:
                return GONE

        return self._asked(question)

    def deployment(self, job: str) -> list[str]:
        """Return what became of bringing a job to its sites, a line for each."""
        meta = self._asked(lambda session: session.get_job_meta(job))
        return list(map(str, meta.get("job_deploy_detail") or []))

    def ask(self, job: str, topic: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a running job answers; none if it does not.

        Raises:
            NotRunningError: if the server does not run it.
        """
        from nvflare.fuel.flare_api.api_spec import (
            InternalError,
            JobNotFound,
            JobNotRunning,
            NoReply,
        )

        def question(session: Any) -> dict[str, Any] | None:
            try:
                answer: dict[str, Any] = session.do_app_command(job, topic, asked)
            # It is about to begin, or to end.
            except (InternalError, NoReply):
                return None
            except (JobNotFound, JobNotRunning) as error:
                raise NotRunningError(job) from error
            return answer

        return self._asked(question)

    def abort(self, job: str) -> None:
        """End a job, if it can be reached."""
        with suppress(ConnectionError):
            self._asked(lambda session: session.abort_job(job))

    def results(self, job: str, directory: Path) -> Path:
        """Download what a job that is over has left; return where."""
        return self._asked(
            lambda session: Path(session.download_job_result(job, str(directory)))
        )

    def close(self) -> None:
        """Leave the server."""
        session, self._session = self._session, None
        if session is not None:
            # Whether it hears of it or not.
            with suppress(Exception):
                session.close()

    def __enter__(self) -> "Administrator":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _asked(self, question: Callable[[Any], Answer]) -> Answer:
        from nvflare.fuel.flare_api.api_spec import (
            AuthenticationError,
            AuthorizationError,
            InvalidJobDefinition,
        )

        try:
            # It prints what it does.
            with redirect_stdout(io.StringIO()):
                if self._session is None:
                    self._session = open_session(self._kit)
                answer = question(self._session)
            self._let_in = time.monotonic()
            return answer
        except NotRunningError:
            raise
        # The library raises many kinds, and hardly any is to end a run of days.
        except Exception as error:
            refused = isinstance(error, AuthenticationError) and not self._may_return()
            if refused or isinstance(error, AuthorizationError | InvalidJobDefinition):
                # Another try would be refused as well.
                said = f"the server of {self._kit} refuses: {error}"
                raise PermissionError(said) from error
            self.close()
            raise ConnectionError(
                f"the server of {self._kit} did not answer: {error}"
            ) from error

    def _may_return(self) -> bool:
        """Whether the server let this administrator in not long ago."""
        let_in = self._let_in
        return let_in is not None and time.monotonic() - let_in < PATIENCE
