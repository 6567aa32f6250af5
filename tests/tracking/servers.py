"""A real MLflow server for tests."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.waiting import HANG, until

TIMEOUT = f"{HANG:.0f}"
"""Timeout of a client in seconds."""
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": TIMEOUT,
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


class Server:
    """`mlflow server` on a separate port, with all its processes in one group."""

    def __init__(self, directory: Path, like: "Server | None" = None) -> None:
        """Start a server; a database is copied, since creating one takes seconds."""
        self.database = directory / "mlflow.db"
        if like is not None:
            shutil.copy(like.database, self.database)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{port}"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        arguments += ["--backend-store-uri", f"sqlite:///{self.database}"]
        arguments += ["--artifacts-destination", str(directory / "artifacts")]
        with (directory / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *arguments],
                env={**os.environ, **ENVIRONMENT},
                cwd=directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._answers)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "mlflow server has ended"
        try:
            urlopen(f"{self.uri}/health", timeout=5).close()
        except (URLError, OSError):
            return False
        return True

    def client(self) -> Any:
        """Return MLflow's own client of this server."""
        import mlflow

        return mlflow.MlflowClient(self.uri)

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()
