"""MLflow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.tracking.protocol import numbers
from fedbilevel.tracking.records import Record

RUN = "mlflow_run"
"""The file in a run's folder that remembers MLflow's name for it."""


class MLflow:
    """Sends parameters and metrics to an MLflow tracking server.

    A run that is resumed goes on under the same MLflow run.

    Example:
        >>> MLflow("http://127.0.0.1:5000", Path("runs/first")).uri
        'http://127.0.0.1:5000'
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder
        self._client: Any = None
        self._run = ""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Find or make the MLflow run, and give it the settings."""
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ImportError(
                "mlflow is not installed; run: pip install 'fedbilevel[mlflow]'"
            ) from error
        self._client = MlflowClient(self.uri)
        remembered = self.folder / RUN
        if remembered.exists():
            self._run = remembered.read_text()
            return
        experiment = self._client.get_experiment_by_name("fedbilevel")
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment("fedbilevel")
        )
        self._run = self._client.create_run(number, run_name=name).info.run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        remembered.write_text(self._run)
        for key, value in settings.items():
            self._client.log_param(self._run, key, value)

    def record(self, record: Record) -> None:
        """Send the numbers of a round, in one message."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, record.round)
            for name, value in numbers(record).items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self) -> None:
        """Say that the run is over."""
        self._client.set_terminated(self._run)
