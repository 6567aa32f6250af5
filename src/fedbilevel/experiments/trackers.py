"""The trackers that an experiment asks for."""

from pathlib import Path

from fedbilevel.experiments.choices import Tracking
from fedbilevel.tracking import MLflow, TensorBoard, Tracker, WeightsAndBiases


def trackers_of(asked: Tracking, folder: Path) -> list[Tracker]:
    """Return trackers that have not begun.

    Args:
        asked: of an experiment.
        folder: of the run.

    Example:
        >>> [type(one).__name__ for one in trackers_of(Tracking(True), Path("runs"))]
        ['TensorBoard']
    """
    trackers: list[Tracker] = []
    if asked.tensorboard:
        trackers.append(TensorBoard(folder))
    if asked.mlflow is not None:
        trackers.append(MLflow(asked.mlflow, folder))
    if asked.wandb is not None:
        trackers.append(WeightsAndBiases(asked.wandb, folder))
    return trackers
