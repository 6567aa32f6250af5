"""A tracker for MLflow."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbilevel.error_text import first_line
from fedbilevel.extras import needs
from fedbilevel.tracking.protocol import RunStatus, numbers
from fedbilevel.tracking.records import Record

EXPERIMENT = "fedbilevel"
"""Name of the MLflow experiment of all runs."""

RUN = "mlflow_run"
"""File in the run directory with the ID of the MLflow run."""

STATUS = {
    RunStatus.FINISHED: "FINISHED",
    RunStatus.STOPPED: "KILLED",
    RunStatus.FAILED: "FAILED",
}

TIMEOUTS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""Timeout in seconds, and no retries: by default MLflow retries for minutes."""


class MLflow:
    """A tracker that sends settings and metrics to an MLflow tracking server.

    A resumed run continues its MLflow run, if the server still has it. Environment
    variables of MLflow take precedence over `TIMEOUTS`.
    """

    def __init__(self, uri: str, directory: Path) -> None:
        """Set the server's address and the run directory, which stores the run's ID."""
        self.uri = uri
        self.directory = directory
        self._client: Any = None
        self._run = ""
        self._start: float | None = None

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """Find the MLflow run, or create it with the settings."""
        with needs("Records in MLflow", "mlflow", "'fedbilevel[mlflow]'"):
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        try:
            with _timeouts():
                self._client = MlflowClient(self.uri)
                if not (resume and self._resume()):
                    self._create(name, settings)
        except MlflowException as error:
            # MLflow wraps network errors in its own exception.
            if isinstance(error.__context__, OSError):
                raise ConnectionError(
                    f"tracking.mlflow: no MLflow server responds at {self.uri}. Start "
                    "one there (mlflow server), or omit tracking.mlflow."
                ) from error
            raise ConnectionError(
                f"tracking.mlflow: MLflow at {self.uri} cannot be used: "
                f"{first_line(error)} Correct the address, or omit tracking.mlflow."
            ) from error

    def record(self, record: Record) -> None:
        """Send the values of a record in one message."""
        from mlflow.entities import Metric

        # A repeated record gets the same time stamp: MLflow then stores it once.
        if self._start is None:
            self._start = time.time() - record.seconds
        timestamp = int((self._start + record.seconds) * 1000)
        metrics = [
            Metric(name, value, timestamp, record.rounds)
            for name, value in numbers(record).items()
        ]
        with _timeouts():
            self._client.log_batch(self._run, metrics=metrics)

    def end(self, outcome: RunStatus) -> None:
        """Set the final status of the MLflow run."""
        with _timeouts():
            self._client.set_terminated(self._run, status=STATUS[outcome])

    def _resume(self) -> bool:
        """Resume the stored MLflow run; return False if there is none."""
        from mlflow.exceptions import MlflowException

        id_file = self.directory / RUN
        if not id_file.exists():
            return False
        self._run = id_file.read_text()
        try:
            self._client.update_run(self._run, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _create(self, name: str, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            # Another run may create it at the same time.
            with suppress(MlflowException):
                self._client.create_experiment(EXPERIMENT)
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
        created = self._client.create_run(experiment.experiment_id, run_name=name)
        self._run = created.info.run_id
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RUN).write_text(self._run)
        params = [Param(key, str(value)) for key, value in settings.items()]
        self._client.log_batch(self._run, params=params)


@contextmanager
def _timeouts() -> Iterator[None]:
    """Set `TIMEOUTS` for MLflow, unless the environment sets them."""
    unset = {name: value for name, value in TIMEOUTS.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]
