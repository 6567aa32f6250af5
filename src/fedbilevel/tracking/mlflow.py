"""MLflow."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbilevel.error_text import first_line
from fedbilevel.tracking.protocol import Outcome, numbers
from fedbilevel.tracking.records import Record

EXPERIMENT = "fedbilevel"
"""MLflow's experiment that all runs are in."""

RUN = "mlflow_run"
"""The file in a run's directory that remembers MLflow's name for it."""

STATUS = {
    Outcome.FINISHED: "FINISHED",
    Outcome.STOPPED: "KILLED",
    Outcome.FAILED: "FAILED",
}

PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""Seconds, and no more than one try: MLflow by itself tries for minutes."""


class MLflow:
    """Sends parameters and metrics to an MLflow tracking server.

    A run that goes on does so under the same MLflow run, if the server still has it.
    MLflow's own environment variables come before `PATIENCE`.

    Example:
        >>> MLflow("http://127.0.0.1:5000", Path("runs/first")).uri
        'http://127.0.0.1:5000'
    """

    def __init__(self, uri: str, directory: Path) -> None:
        """Name the server's address and the directory that remembers the run."""
        self.uri = uri
        self.directory = directory
        self._client: Any = None
        self._run = ""
        self._began: float | None = None

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """Find or make the MLflow run, and give a new one the settings."""
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ImportError(
                "mlflow is not installed; run: pip install 'fedbilevel[mlflow]'"
            ) from error
        try:
            with _patience():
                self._client = MlflowClient(self.uri)
                if not (resume and self._found_again()):
                    self._make(name, settings)
        except MlflowException as error:
            # MLflow hides what the network said behind an exception of its own.
            if isinstance(error.__context__, OSError):
                raise ConnectionError(
                    f"no MLflow server answers at {self.uri}; start one there "
                    "(mlflow server), or leave MLflow out."
                ) from error
            raise ConnectionError(
                f"MLflow at {self.uri} cannot be used: {first_line(error)}"
            ) from error

    def record(self, record: Record) -> None:
        """Send the numbers of a round, in one message."""
        from mlflow.entities import Metric

        # The same time whenever it is sent: MLflow keeps what it has got twice once.
        if self._began is None:
            self._began = time.time() - record.seconds
        measured = int((self._began + record.seconds) * 1000)
        metrics = [
            Metric(name, value, measured, record.rounds)
            for name, value in numbers(record).items()
        ]
        with _patience():
            self._client.log_batch(self._run, metrics=metrics)

    def end(self, outcome: Outcome) -> None:
        """Say that the run is over, and how it ended."""
        with _patience():
            self._client.set_terminated(self._run, status=STATUS[outcome])

    def _found_again(self) -> bool:
        from mlflow.exceptions import MlflowException

        remembered = self.directory / RUN
        if not remembered.exists():
            return False
        self._run = remembered.read_text()
        try:
            self._client.update_run(self._run, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _make(self, name: str, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            # Another run may make it at the same moment.
            with suppress(MlflowException):
                self._client.create_experiment(EXPERIMENT)
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
        made = self._client.create_run(experiment.experiment_id, run_name=name)
        self._run = made.info.run_id
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RUN).write_text(self._run)
        params = [Param(key, str(value)) for key, value in settings.items()]
        self._client.log_batch(self._run, params=params)


@contextmanager
def _patience() -> Iterator[None]:
    """Let MLflow wait for seconds at most, where nobody has said how long."""
    ours = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
