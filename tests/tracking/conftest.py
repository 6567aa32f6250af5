"""One MLflow server for all tests that do not stop it."""

import signal
from collections.abc import Iterator

import pytest

from tests.tracking.servers import TIMEOUT, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.signal(signal.SIGKILL)


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture(autouse=True)
def a_slow_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a server that lives may take longer than a user would wait.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", TIMEOUT)
